"""The calculator page's arithmetic, run by Node, gives the numbers of the Python calculators."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
from typing import Any

import pytest

from docs.hooks.calculator_tables import CACHE_FORMATS, WEIGHT_FORMATS, calculator_tables
from docs.hooks.faults import ROOT
from infra_lab.calculators.capacity import capacity, fewest_gpus
from infra_lab.calculators.formats import number_format
from infra_lab.calculators.hardware import DEVICES
from infra_lab.calculators.kv_cache import (
    bytes_per_token,
    cache_bytes,
    cache_format,
)
from infra_lab.calculators.model_table import MODELS
from infra_lab.calculators.roofline import (
    Setting,
    StepCost,
    crossover_batch,
    decode_cost,
    prefill_cost,
    ridge_batch,
    step_time,
)
from infra_lab.calculators.weights import weight_bytes
from infra_lab.config import DEFAULT_BLOCK_SIZE

TABLES = json.loads(calculator_tables())
SCRIPT = ROOT / "docs/assets/javascripts/calculator.js"
PROGRAM = f"""
import {{ readFileSync }} from "node:fs";
import {{ compute, faults }} from {json.dumps(SCRIPT.as_uri())};
const {{ tables, inputs }} = JSON.parse(readFileSync(0, "utf8"));
const results = inputs.map((input) => {{
  const wrong = faults(tables, input);
  return Object.keys(wrong).length ? {{ faults: wrong }} : compute(tables, input);
}});
process.stdout.write(JSON.stringify(results));
"""
RELATIVE = 1e-9
LARGEST_EXACT = 2**53  # of whole numbers in JavaScript


def node() -> str:
    """The one on PATH, else the one that Playwright brings along."""
    found = shutil.which("node")
    if found is None:
        driver = pytest.importorskip(
            "playwright._impl._driver", reason="neither node nor Playwright, which brings one, here"
        )
        found = str(driver.compute_driver_executable()[0])
    return found


def in_javascript(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [node(), "--input-type=module", "--eval", PROGRAM],
        input=json.dumps({"tables": TABLES, "inputs": inputs}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def in_python(given: dict[str, Any]) -> dict[str, Any]:
    """The same names as `compute` in calculator.js, from infra_lab.calculators."""
    model, device = MODELS[given["model"]], DEVICES[given["device"]]
    weights, cache = number_format(given["weights"]), cache_format(given["cache"], model)
    setting = Setting(
        device,
        weights,
        cache,
        given["operands"],
        given["gpus"],
        given["efficiency"],
        given["efficiency"],
    )
    context = given["prompt"] + given["output"]
    stored = weight_bytes(model, weights)
    request = cache_bytes(model, context, 1, cache, DEFAULT_BLOCK_SIZE)
    room = capacity(
        device.memory_bytes,
        stored.total_bytes,
        request,
        num_gpus=given["gpus"],
        utilization=given["utilization"],
    )
    fresh = given["prompt"] - given["cached"]
    prefill = prefill_cost(model, fresh, given["cached"], setting)
    decode = decode_cost(model, given["batch"], context, setting)
    return {
        "context": context,
        "weights": {
            "linear_bytes": stored.linear_bytes,
            "other_bytes": stored.other_bytes,
            "total_bytes": stored.total_bytes,
        },
        "bytes_per_token": bytes_per_token(model, cache),
        "request_bytes": request,
        "batch_bytes": cache_bytes(model, context, given["batch"], cache, DEFAULT_BLOCK_SIZE),
        "capacity": {
            "budget_bytes": room.budget_bytes,
            "cache_bytes": room.cache_bytes,
            "num_requests": room.num_requests,
            "fits": room.fits,
        },
        "fewest_gpus": fewest_gpus(
            device.memory_bytes, stored.total_bytes, request, utilization=given["utilization"]
        ),
        "prefill": step(prefill, setting),
        "decode": step(decode, setting),
        "tokens_per_s": given["batch"] / step_time(decode, setting).time_s,
        "ridge": setting.flops_per_s / setting.bytes_per_s,
        "ridge_batch": ridge_batch(weights, setting),
        "crossover_batch": crossover_batch(model, context, setting),
        "flops_per_s": setting.flops_per_s,
        "bytes_per_s": setting.bytes_per_s,
    }


def step(cost: StepCost, setting: Setting) -> dict[str, Any]:
    time = step_time(cost, setting)
    return {
        "flops": cost.flops,
        "weight_bytes": cost.weight_bytes,
        "cache_bytes": cost.cache_bytes,
        "compute_s": time.compute_s,
        "memory_s": time.memory_s,
        "time_s": time.time_s,
        "bound": time.bound,
        "intensity": cost.intensity_flops_per_byte,
    }


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two results differ: counts at all, while JavaScript can hold them; the others by more
    than 1e-9 of their size."""
    if isinstance(ours, dict):
        if set(ours) != set(theirs):
            return [f"{path}: {sorted(set(ours) ^ set(theirs))}"]
        return [one for key in ours for one in differences(ours[key], theirs[key], f"{path}.{key}")]
    if isinstance(ours, float) or (type(ours) is int and ours > LARGEST_EXACT):
        return [] if ours == pytest.approx(theirs, rel=RELATIVE) else [f"{path}: {ours} {theirs}"]
    return [] if ours == theirs else [f"{path}: {ours} {theirs}"]


def base(**changes: Any) -> dict[str, Any]:
    return {
        "model": "llama-3-8b", "device": "h100", "gpus": 1, "weights": "bf16", "cache": "bf16",
        "operands": "bf16", "prompt": 1024, "output": 128, "cached": 0, "batch": 8,
        "utilization": TABLES["default_utilization"], "efficiency": 1,
    } | changes  # fmt: skip


def test_every_model_gpu_and_format_gives_the_numbers_of_the_calculators() -> None:
    inputs = [
        base(model=model, device=device, output=16, weights=weights, cache=cache)
        for (model, device), (weights, cache) in zip(
            itertools.product(MODELS, DEVICES),
            itertools.cycle(itertools.product(WEIGHT_FORMATS, CACHE_FORMATS)),
            strict=False,
        )
    ]
    results = in_javascript(inputs)
    found = [
        (given, diff)
        for given, result in zip(inputs, results, strict=True)
        if (diff := differences(in_python(given), result))
    ]
    assert found == []


def test_random_inputs_give_the_numbers_of_the_calculators() -> None:
    draw = random.Random(20261130)
    inputs = []
    for _ in range(400):
        model, device = draw.choice(list(MODELS)), draw.choice(list(DEVICES))
        longest = MODELS[model].max_context
        prompt = draw.randint(1, longest - 1)
        inputs.append(
            base(
                model=model,
                device=device,
                gpus=draw.choice([1, 2, 4, 8, 16]),
                weights=draw.choice(WEIGHT_FORMATS),
                cache=draw.choice(CACHE_FORMATS),
                operands=draw.choice(list(DEVICES[device].peak_flops_per_s)),
                prompt=prompt,
                output=draw.randint(1, longest - prompt),
                cached=draw.randint(0, prompt - 1),
                batch=draw.randint(1, 2000),
                utilization=draw.uniform(0.05, 1),
                efficiency=draw.uniform(0.05, 1),
            )
        )
    results = in_javascript(inputs)
    found = [
        (given, diff)
        for given, result in zip(inputs, results, strict=True)
        if (diff := differences(in_python(given), result))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"output": 0}, "output"),
        ({"prompt": 1.5}, "prompt"),
        ({"batch": None}, "batch"),
        ({"cached": 1024}, "cached"),
        ({"cached": -1}, "cached"),
        ({"utilization": 0}, "utilization"),
        ({"efficiency": 1.01}, "efficiency"),
        ({"prompt": 10**7}, "prompt"),
        ({"device": "a100-80gb", "operands": "fp8"}, "operands"),
        ({"operands": "constructor"}, "operands"),
    ],
)
def test_what_makes_no_sense_is_named_and_not_computed(changes: Any, field: str) -> None:
    assert list(in_javascript([base(**changes)])[0]["faults"]) == [field]


def test_the_tables_hold_every_model_and_gpu_with_their_sources() -> None:
    assert set(TABLES["models"]) == set(MODELS)
    assert set(TABLES["devices"]) == set(DEVICES)
    assert all(one["sources"] for one in TABLES["devices"].values())
