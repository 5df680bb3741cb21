"""The book that comes with the package, and a user's own texts."""

from __future__ import annotations

import hashlib
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from infra_lab.errors import UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.tokenizer import load_tokenizer
from infra_lab.quantization.corpus import calibration_text, evaluation_text

ROOT = Path(__file__).resolve().parents[2]


def test_methods_learn_from_the_first_chapters_and_are_judged_on_the_others() -> None:
    learned, judged = calibration_text(), evaluation_text()
    assert "CHAPTER I\n" in learned
    assert "CHAPTER V\n" in learned
    assert "CHAPTER VI" not in learned
    assert judged.startswith("CHAPTER VI\n")
    assert judged.endswith("THE END\n")
    book = files("infra_lab.quantization.text").joinpath("alice.txt").read_text(encoding="utf-8")
    assert "".join((learned + judged).split()) == "".join(book.split())


def test_the_book_is_the_one_that_its_readme_names() -> None:
    raw = files("infra_lab.quantization.text").joinpath("alice.txt").read_bytes()
    digest = "cc660e04a3bef809b5436e822536cafefa278d55fb3639fb3e93665590d6fc0a"
    assert hashlib.sha256(raw).hexdigest() == digest


def test_the_book_travels_with_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = settings["tool"]["setuptools"]["package-data"]
    assert "alice.txt" in data["infra_lab.quantization.text"]


def test_a_users_texts_are_read_and_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("né", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    assert calibration_text(tmp_path / "a.txt") == evaluation_text(tmp_path / "a.txt") == "né"
    for name in ("b.txt", "c.txt"):
        for read in (calibration_text, evaluation_text):
            with pytest.raises(UsageError, match=f"{name} cannot be read as text"):
                read(tmp_path / name)


@pytest.mark.model
def test_there_are_enough_tokens_to_learn_from_and_to_be_judged_on(smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(smollm2_path))
    assert len(tokenizer.encode(calibration_text())) >= 30 * 512
    assert len(tokenizer.encode(evaluation_text())) >= 20_000
