"""Facts about the machine: plausible, and never a crash where the system does not tell."""

from __future__ import annotations

import json

from infra_lab.bench.system import cpu_name, installed_version, machine_facts, peak_rss_mb


def test_peak_memory_holds_what_the_process_has_touched() -> None:
    before = peak_rss_mb()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    assert peak_rss_mb() >= max(before, 64)


def test_the_processor_has_a_name() -> None:
    assert cpu_name()


def test_the_facts_are_json_ready() -> None:
    facts = machine_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cores"] >= 1


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-package-of-ours") is None
