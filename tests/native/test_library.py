"""Building the C kernels: whole or not at all, and never a reason to fail."""

from __future__ import annotations

import logging
import platform
import sys
from pathlib import Path

import pytest
import torch

from infra_lab.layers.linear import PackedLinear
from infra_lab.layers.quantized_linear import QuantizedLinear
from infra_lab.native import library
from infra_lab.native.library import NativeUnavailableError
from tests.layers.quantized_weights import TABLES, quantized_weight


def test_without_a_compiler_there_is_a_reason_and_no_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFRA_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "find_c_compiler", lambda: None)
    with pytest.raises(NativeUnavailableError, match="no C compiler"):
        library.load_library.__wrapped__()
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: no such option' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(library, "find_c_compiler", lambda: str(broken))
    with pytest.raises(NativeUnavailableError, match="no such option"):
        library.load_library.__wrapped__()
    broken.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(NativeUnavailableError, match="status 3 and said nothing"):
        library.load_library.__wrapped__()
    assert not list((tmp_path / "native").iterdir())


def test_a_missing_compiler_is_a_warning_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable() -> None:
        raise NativeUnavailableError("no C compiler was found")

    monkeypatch.setattr(library, "load_library", unavailable)
    with caplog.at_level(logging.WARNING):
        assert not library.is_available.__wrapped__()
    assert "no C compiler was found" in caplog.text
    assert "infra-lab doctor" in caplog.text


def test_a_changed_flag_means_a_new_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library._library_path("cc")
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, "-DX"))
    assert library._library_path("cc") != before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a compiler may lack OpenMP")
def test_where_there_is_a_compiler_the_kernels_compile() -> None:
    if library.find_c_compiler() is None:
        pytest.skip("no C compiler here")
    assert library.load_library().panel_width() in (8, 16, 32)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are of x86 processors")
@pytest.mark.parametrize(("march", "width"), [("haswell", 16), ("x86-64", 8)])
def test_products_of_codes_are_exact_on_older_processors_too(
    march: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library.is_available():
        pytest.skip("no compiled kernels here")
    flags = [flag for flag in library.FLAGS if flag != "-march=native"]
    try:
        monkeypatch.setattr(library, "FLAGS", (*flags, f"-march={march}"))
        library.load_library.cache_clear()
        assert library.load_library().panel_width() == width
        for table in TABLES:
            for shift in ("none", "zeros", "means", "offsets"):
                weight = quantized_weight(table, 21, 300, 32, shift, scattered=shift == "zeros")
                layer, dense = QuantizedLinear(weight), PackedLinear(weight.dequantize())
                for rows in (1, 3, 17):
                    x = torch.randn(rows, 300)
                    assert torch.equal(layer(x), dense(x)), (table, shift, rows)
                assert torch.equal(layer.rows(torch.tensor([20, 0])), weight.dequantize()[[20, 0]])
    finally:
        monkeypatch.undo()
        library.load_library.cache_clear()
