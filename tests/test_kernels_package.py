"""Our `kernels` beside the world's: a foreign one is named, and transformers is not disturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra_lab.cli.doctor_checks import check_kernels
from infra_lab.errors import ForeignKernelsError
from infra_lab.kernels_guard import OWN_FOLDER, foreign_kernels, require_own_kernels

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another package called kernels, first on the path, that must not even be imported."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported to find out')\n")
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_our_own_kernels_pass_the_guard() -> None:
    require_own_kernels()
    assert foreign_kernels() is None


def test_a_foreign_kernels_package_is_named_with_its_place_and_a_mend(foreign: Path) -> None:
    with pytest.raises(ForeignKernelsError) as caught:
        require_own_kernels()
    message = str(caught.value)
    assert str(foreign) in message
    assert str(OWN_FOLDER) in message
    assert "PYTHONPATH" in message


def test_a_package_that_overwrote_ours_in_place_is_found_by_its_missing_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import kernels

    monkeypatch.delattr(kernels, "MARKER")
    assert foreign_kernels() == OWN_FOLDER


def test_the_doctor_reports_a_foreign_kernels_package(foreign: Path) -> None:
    check = check_kernels()
    assert check.verdict == "fail"
    assert str(foreign) in check.value
    assert check.mend


def test_transformers_works_beside_our_kernels() -> None:
    """A child process: transformers must meet our package at its own import."""
    program = """
import kernels, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_kernels_available
assert kernels.MARKER == "infra-lab"
assert not is_kernels_available()
config = LlamaConfig(
    vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8,
)
logits = AutoModelForCausalLM.from_config(config)(torch.tensor([[1, 2, 3]])).logits
assert logits.shape == (1, 3, 16)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
