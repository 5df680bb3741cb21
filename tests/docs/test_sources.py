"""Code on a page is the text of the tree, found by name."""

from __future__ import annotations

import inspect

import pytest

from docs.hooks.faults import ROOT, MarkerError
from docs.hooks.sources import find_source
from infra_lab.cache.block_pool import BlockPool
from infra_lab.calculators.kv_cache import cache_bytes


def test_a_function_is_found_with_its_docstring() -> None:
    found = find_source("infra_lab.calculators.kv_cache:cache_bytes")
    assert found.text + "\n" == inspect.getsource(cache_bytes)
    assert found.first_line == inspect.getsourcelines(cache_bytes)[1]


def test_a_method_is_dedented_and_keeps_its_decorators() -> None:
    found = find_source("infra_lab.cache.block_pool:BlockPool.usage")
    assert found.text.startswith("@property\ndef usage")
    assert inspect.getsource(BlockPool.usage.fget).strip().endswith(found.text.split("\n")[-1])  # type: ignore[attr-defined]


def test_a_constant_and_a_file_by_path_are_found() -> None:
    assert find_source("infra_lab.figures:INK").text == 'INK = "#3b4252"'
    assert find_source("solutions/lru_cache/solution.py:LRUCache").module is None
    assert find_source("kernels/swiglu.py:swiglu").module == "kernels.swiglu"


def test_a_packages_own_file_is_found() -> None:
    with pytest.raises(MarkerError, match="there is no 'x'"):
        find_source("infra_lab.cache:x")


def test_nothing_outside_the_repository_is_read() -> None:
    with pytest.raises(MarkerError):
        find_source("../../etc/passwd.py:x", ROOT)
