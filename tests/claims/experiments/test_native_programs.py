"""How programs are built and run, how their ends are read, and what the labs make of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from infra_lab.claims.experiments import array_bounds as bounds
from infra_lab.claims.experiments import native_programs
from infra_lab.claims.experiments.native_programs import Ended, Workshop, run_command, workshop
from infra_lab.claims.experiments.needs import compiler
from infra_lab.errors import InfraLabError

needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
needs_posix = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop() as made:
        yield made


@needs_posix
@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)]
)
def test_a_status_is_what_a_shell_sees(script: str, status: int) -> None:
    ended = run_command(["sh", "-c", script])
    assert ended.status == status
    assert ended.has_crashed == (status == 139)


@needs_posix
def test_a_program_that_does_not_end_is_ended() -> None:
    assert run_command(["sleep", "60"], limit_s=0.2).status == 124


@needs_posix
def test_settings_of_sanitizers_do_not_reach_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASAN_OPTIONS", "halt_on_error=0")
    assert "ASAN_OPTIONS" not in run_command(["env"]).out
    given = run_command(["env"], environment={"ASAN_OPTIONS": "mine"})
    assert "ASAN_OPTIONS=mine" in given.out


def test_numbers_are_read_by_their_name() -> None:
    ended = Ended(0, "x_index -1\nx 7\n", "")
    assert (ended.number("x"), ended.number("x_index"), ended.number("y")) == (7, -1, None)


@pytest.mark.parametrize(
    ("ended", "wanted"),
    [
        (Ended(0, "x 42\n", ""), "silent"),
        (Ended(0, "x 7\n", ""), "x changed"),
        (Ended(0, "", ""), "silent"),
        (Ended(139, "", ""), "crash"),
        (Ended(135, "", ""), "crash"),
        (Ended(134, "", "*** stack smashing detected ***: terminated"), "canary"),
        (Ended(134, "", "terminate called"), "aborted"),
        (Ended(1, "", "==1==ERROR: AddressSanitizer: stack-buffer-overflow"), "reported"),
        (Ended(134, "", "a.cpp:3:4: runtime error: index 10 out of bounds"), "reported"),
        (Ended(1, "", ""), "other"),
        (Ended(0, "x 13\n", ""), "other"),
    ],
)
def test_an_outcome_is_read_from_status_and_words(ended: Ended, wanted: str) -> None:
    assert bounds.outcome(ended) == wanted


def test_a_functions_lines_end_with_its_size() -> None:
    listing = "_Z3sumv:\n\tpaddd\n\t.size _Z3sumv, 4\n_Z5other:\n\tmulps\n"
    assert bounds.function_body(listing, "_Z3sum") == "_Z3sumv:\n\tpaddd"
    assert bounds.function_body(listing, "_Z9none") == ""


def test_every_program_says_what_it_is_for() -> None:
    folder = files("infra_lab.claims.experiments.programs")
    sources = [one for one in folder.iterdir() if one.name.endswith(".cpp")]
    assert sources
    for one in sources:
        assert one.read_text(encoding="utf-8").startswith("// "), one.name


def test_without_a_compiler_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_programs, "compiler", lambda: None)
    with pytest.raises(InfraLabError, match="install g\\+\\+"), workshop():
        raise AssertionError("there is no workshop")


@needs_compiler
def test_the_workshop_builds_runs_and_cleans_up() -> None:
    with workshop() as made:
        program = made.built("contiguous_address", "-O0")
        assert made.run(program).number("published") == 4
        folder = made.folder
    assert not folder.exists()


@needs_compiler
def test_a_source_that_does_not_compile_is_told_in_the_compilers_words(shop: Workshop) -> None:
    built = shop.build("span_at", "-std=c++20")
    assert built.program is None
    assert "at" in built.messages
    with pytest.raises(InfraLabError, match=r"cannot compile span_at.cpp with -std=c\+\+20"):
        shop.built("span_at", "-std=c++20")


@needs_compiler
def test_the_compiler_and_its_library_are_told_apart(shop: Workshop, tmp_path: Path) -> None:
    assert shop.kind in ("gcc", "clang")
    assert shop.version
    assert shop.defines("__cplusplus")
    assert not shop.defines("NO_SUCH_MACRO")


@needs_compiler
def test_an_index_within_the_array_is_silent_in_every_build(shop: Workshop) -> None:
    for flags in bounds.STACK_BUILDS.values():
        built = shop.build("stack_array", *flags)
        if built.program is not None:
            assert bounds.outcome(shop.run(built.program, 9)) == "silent"
