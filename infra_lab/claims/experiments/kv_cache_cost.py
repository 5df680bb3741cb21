"""What does a KV cache save, and why may it be kept at all?

The default model generates greedily with and without a cache, and everything that passes through
its attention is counted. Costs are sums over the whole generation, fitted against its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra_lab.claims.experiments.attention_probes import (
    BLOCK_SIZE,
    Counted,
    Generation,
    SeesAll,
    generate_with_cache,
    generate_without_cache,
    read_whole,
)
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.fits import fitted_exponent
from infra_lab.claims.experiments.needs import default_model
from infra_lab.claims.experiments.threads import one_thread
from infra_lab.quantization.distance import relative_error
from infra_lab.texts import Language, text

if TYPE_CHECKING:
    import torch

    from infra_lab.models.decoder import DecoderForCausalLM
    from infra_lab.models.tokenizer import Tokenizer

LENGTHS = (12, 24, 48, 96)
_WATCHED = 5  # the token whose keys are looked at
_SENTENCE = "The cache keeps what a causal mask has frozen for good."
_OTHER_FIRST = "A"
_PROMPTS = ("The capital of France is", "They live in France, in the city of")
_MEASURABLE = 1e-3  # relative; rounding is a thousandth of it


@one_thread()
def run(progress: Progress, seed: int) -> Result:
    """`seed` chooses nothing: generation is greedy, and prompts are fixed."""
    import torch

    from infra_lab.attention.torch_backend import TorchAttentionBackend
    from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend
    from infra_lab.models.loader import open_checkpoint
    from infra_lab.models.tokenizer import load_tokenizer
    from infra_lab.quantization.evaluate import TextModel
    from infra_lab.quantization.modules import num_linear_weights

    progress(0, 4, text("loading the model", "加载模型"))
    checkpoint = open_checkpoint(default_model())
    model = TextModel.load(checkpoint, 2 * max(LENGTHS)).model
    shape, cpu = model.attention_shape, torch.device("cpu")
    tokenizer = load_tokenizer(checkpoint)
    prompt = tokenizer.encode(_SENTENCE)[:1]
    progress(1, 4, text("with a cache", "有缓存"))
    paged = TorchAttentionBackend(shape, BLOCK_SIZE, model.dtype, cpu)
    with_probe, without_probe = Counted(paged), Counted(WholeSequenceBackend(shape))
    with_cache = generate_with_cache(model, with_probe, prompt, max(LENGTHS))
    progress(2, 4, text("without a cache", "无缓存"))
    without = generate_without_cache(model, without_probe, prompt, max(LENGTHS))
    progress(3, 4, text("what keys depend on", "key 取决于什么"))
    config = model.config
    weights = num_linear_weights(config)
    score_flops = 4 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    n = max(LENGTHS)
    numbers = {
        "n": n,
        "same_ids": float(with_cache.token_ids == without.token_ids),
        "layers": config.num_hidden_layers,
        "score_exponent_without": _exponent(without.scored),
        "score_exponent_with": _exponent(with_cache.scored),
        "row_exponent_without": _exponent(without.rows),
        "row_exponent_with": _exponent(with_cache.rows),
        "score_ratio": without.scored[-1] / with_cache.scored[-1],
        "row_ratio": without.rows[-1] / with_cache.rows[-1],
        "score_share": score_flops
        * without.scored[-1]
        / (score_flops * without.scored[-1] + 2 * weights * without.rows[-1]),
        "time_ratio": without.seconds / with_cache.seconds,
        "step_queries": with_probe.query_shape[0],
        "head_dim": with_probe.query_shape[1],
        "step_keys": with_probe.keys_seen,
        **_dependence(model, tokenizer),
        **_what_the_next_step_reads(model, tokenizer),
    }
    rows = tuple(_row(length, with_cache, without, weights, score_flops) for length in LENGTHS)
    series = {
        "steps": list(range(1, n + 1)),
        "scored_with": with_cache.scored,
        "scored_without": without.scored,
        "rows_with": with_cache.rows,
        "rows_without": without.rows,
    }
    return Result(numbers, (_table(rows, config.num_hidden_layers),), _conclude(numbers), series)


def _exponent(sums: Sequence[int]) -> float:
    return fitted_exponent(LENGTHS, [sums[length - 1] for length in LENGTHS])


def _row(
    length: int, with_cache: Generation, without: Generation, weights: int, score_flops: int
) -> tuple[float, ...]:
    at = length - 1
    flops = [
        2 * weights * one.rows[at] + score_flops * one.scored[at] for one in (without, with_cache)
    ]
    return (
        float(length),
        float(without.scored[at]),
        float(with_cache.scored[at]),
        float(without.rows[at]),
        float(with_cache.rows[at]),
        flops[0] / 1e9,
        flops[1] / 1e9,
    )


def _table(rows: tuple[tuple[float, ...], ...], num_layers: int) -> Table:
    return Table(
        text(
            f"Sums over a whole generation: SmolLM2-135M, {num_layers} layers, one token to begin "
            "with; pairs of a head and layer",
            f"整个生成过程的总量：SmolLM2-135M，{num_layers} 层，从 1 个 token 开始；"
            "query-key 对按单头单层计",
        ),
        (
            column("tokens", "token 数", ".0f"),
            column("pairs, no cache", "对数，无缓存", ",.0f"),
            column("pairs, cache", "对数，有缓存", ",.0f"),
            column("rows, no cache", "行数，无缓存", ",.0f"),
            column("rows, cache", "行数，有缓存", ",.0f"),
            column("GFLOP, no cache", "GFLOP，无缓存", ",.1f"),
            column("GFLOP, cache", "GFLOP，有缓存", ",.1f"),
        ),
        rows,
    )


def _dependence(model: DecoderForCausalLM, tokenizer: Tokenizer) -> dict[str, float]:
    """How much the keys of a token change with an earlier one, and with a later one."""
    from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend

    shape = model.attention_shape
    base = tokenizer.encode(_SENTENCE)
    other = tokenizer.encode(_OTHER_FIRST)[0]
    changed_first = [other, *base[1:]]
    changed_last = [*base[:-1], other]

    def keys(token_ids: list[int], sees_all: bool = False) -> list[torch.Tensor]:
        inner = (
            SeesAll(shape.num_kv_heads, shape.scale) if sees_all else WholeSequenceBackend(shape)
        )
        probe = Counted(inner, keep=True)  # type: ignore[arg-type]
        read_whole(model, probe, token_ids)
        return [one[_WATCHED, 0] for one in probe.keys_and_values]

    plain, seen_all = keys(base), keys(base, sees_all=True)
    first, last = keys(changed_first), keys(changed_last)
    last_seen = keys(changed_last, sees_all=True)
    return {
        "first_layer_change": relative_error(first[0], plain[0]),
        "second_layer_change": relative_error(first[1], plain[1]),
        "later_token_change": max(map(relative_error, last, plain)),
        "encoder_change": max(map(relative_error, last_seen, seen_all)),
    }


def _what_the_next_step_reads(model: DecoderForCausalLM, tokenizer: Tokenizer) -> dict[str, float]:
    """Two prompts that give the same id: how far their last hidden states are apart, and the next
    step's inputs."""
    import torch

    from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend

    states, ids = [], []
    for prompt in _PROMPTS:
        probe = Counted(WholeSequenceBackend(model.attention_shape))
        states.append(read_whole(model, probe, tokenizer.encode(prompt))[-1:])
        ids.append(int(model.logits(states[-1]).argmax()))
    inputs = [model.embed(torch.tensor([one])) for one in ids]
    return {
        "same_next_id": float(ids[0] == ids[1]),
        "state_distance": relative_error(states[0], states[1]),
        "input_distance": relative_error(inputs[0], inputs[1]),
    }


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    n = numbers["n"]
    return (
        Conclusion(
            text(
                "With and without a cache {n:.0f} greedy tokens are the same.",
                "有无缓存，{n:.0f} 个贪心 token 完全相同。",
            ),
            numbers["same_ids"] == 1,
        ),
        Conclusion(
            text(
                "Scored pairs grow as n^{score_exponent_without:.2f} without a cache and as "
                "n^{score_exponent_with:.2f} with it: {score_ratio:.1f} times fewer, (2n + 1) / 3.",
                "打分的 query-key 对无缓存时按 n^{score_exponent_without:.2f} 增长，有缓存时按 "
                "n^{score_exponent_with:.2f}：少 {score_ratio:.1f} 倍，即 (2n+1)/3。",
            ),
            abs(numbers["score_ratio"] - (2 * n + 1) / 3) < 1e-9
            and abs(numbers["score_exponent_without"] - 3) < 0.15
            and abs(numbers["score_exponent_with"] - 2) < 0.15,
        ),
        Conclusion(
            text(
                "Projected rows grow as n^{row_exponent_without:.2f} and "
                "n^{row_exponent_with:.2f}: "
                "{row_ratio:.1f} times fewer, (n + 1) / 2.",
                "投影的行数按 n^{row_exponent_without:.2f} 与 n^{row_exponent_with:.2f} 增长："
                "少 {row_ratio:.1f} 倍，即 (n+1)/2。",
            ),
            abs(numbers["row_ratio"] - (n + 1) / 2) < 1e-9
            and abs(numbers["row_exponent_without"] - 2) < 0.15
            and abs(numbers["row_exponent_with"] - 1) < 0.05,
        ),
        Conclusion(
            text(
                "At this length scores are {score_share:.1%} of the FLOPs without a cache: what is "
                "really saved is the O(n^2) of projections and MLP, not the O(n^3).",
                "在这个长度上，无缓存时打分只占 FLOPs 的 {score_share:.1%}：真正省下的是投影与 "
                "MLP 的 "
                "O(n²)，而不是 O(n³)。",
            ),
            numbers["score_share"] < 0.2,
        ),
        Conclusion(
            text(
                "On the clock it is {time_ratio:.1f} times (asked for: more than 2).",
                "实际耗时相差 {time_ratio:.1f} 倍（要求大于 2）。",
            ),
            numbers["time_ratio"] > 2,
        ),
        Conclusion(
            text(
                "A token's keys do not depend on its own embedding only: with another first token "
                "they change by {first_layer_change:.0%} in the first layer and "
                "{second_layer_change:.0%} in the second.",
                "key 并非只取决于自身的 embedding：换掉第一个 token，第一层的 key 变化 "
                "{first_layer_change:.0%}，第二层变化 {second_layer_change:.0%}。",
            ),
            numbers["first_layer_change"] == 0 and numbers["second_layer_change"] > _MEASURABLE,
        ),
        Conclusion(
            text(
                "They may be kept because a later token changes them by {later_token_change:.0e}; "
                "without the causal mask it does by {encoder_change:.0%}.",
                "能缓存是因为后来的 token 只改变 {later_token_change:.0e}；去掉因果掩码则改变 "
                "{encoder_change:.0%}。",
            ),
            numbers["later_token_change"] < 1e-5 and numbers["encoder_change"] > _MEASURABLE,
        ),
        Conclusion(
            text(
                "The next step reads an id and not a hidden state: two prompts' states, "
                "{state_distance:.0%} apart, give the same id and inputs {input_distance:.0%} "
                "apart.",
                "下一步读入的是 id 而不是隐藏状态：两个提示的状态相差 {state_distance:.0%}，"
                "得到同一个 id，输入相差 {input_distance:.0%}。",
            ),
            numbers["same_next_id"] == 1
            and numbers["state_distance"] > _MEASURABLE
            and numbers["input_distance"] == 0,
        ),
        Conclusion(
            text(
                "In the last step Q of a head is [{step_queries:.0f}, {head_dim:.0f}] and scores "
                "{step_keys:.0f} keys.",
                "最后一步单头 Q 为 [{step_queries:.0f}, {head_dim:.0f}]，对 {step_keys:.0f} 个 key "
                "打分。",
            ),
            numbers["step_queries"] == 1 and numbers["step_keys"] == n,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import direct_labels, drawing

    steps = list(result.series["steps"])
    panels = (
        (text("query-key pairs scored", "打分的 query-key 对"), "scored"),
        (text("rows projected", "投影的行数"), "rows"),
    )
    names = (("without", text("no cache", "无缓存")), ("with", text("cache", "有缓存")))
    with drawing(path, columns=2, width=8.6, height=3.6) as (_, both):
        for axes, (title, kind) in zip(both, panels, strict=True):
            for suffix, label in names:
                axes.loglog(steps, result.series[f"{kind}_{suffix}"], label=label[language])
            axes.set_title(title[language])
            axes.set_xlabel({"en": "tokens generated", "zh": "生成的 token 数"}[language])
            direct_labels(axes)


EXPERIMENT = Experiment(
    "kv-cache-cost",
    text("What a KV cache saves", "KV Cache 省下什么"),
    text(
        "What does a KV cache save, and why may it be kept at all?",
        "KV Cache 省下什么？为什么可以缓存？",
    ),
    run,
    draw,
    seconds=40,
    needs=("model",),
)
