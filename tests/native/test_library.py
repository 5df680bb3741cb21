"""Building the C kernels: whole or not at all, and never a reason to fail."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from infra_lab.native import library
from infra_lab.native.library import NativeUnavailableError


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
