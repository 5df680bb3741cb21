"""Help in the learner's language: a command whose texts stand in English and in Chinese."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

from infra_lab.cli.options import Command
from infra_lab.cli.usage import explain_usage, is_usage_error
from infra_lab.errors import InfraLabError, UsageError
from infra_lab.practice.language import choose_language
from infra_lab.texts import speaker

_SEPARATOR = "\x1f"  # between the two languages of a help text

# What `usage.explain_usage` says of the kinds of parameters that these commands have.
_USAGE = (
    (r"(\S+) is missing", r"缺少 \1"),
    (r"(\S+) needs a value", r"\1 需要一个值"),
    (r"no option ('.*?'): did you mean ('.*?')\?", r"没有选项 \1：是不是 \2？"),
    (r"no option ('.*?')", r"没有选项 \1"),
    (r"(\S+) must be a whole number, not ('.*')", r"\1 必须是整数，而不是 \2"),
    (r"no command ('.*?') of (`.*?`): did you mean ('.*?')\?", r"\2 没有命令 \1：是不是 \3？"),
    (r"no command ('.*?') of (`.*?`): commands are (.*)", r"\2 没有命令 \1：可用 \3"),
    (r"too many arguments, from ('.*?') on.*", r"参数太多，从 \1 起是多余的"),
)


def both(en: str, zh: str) -> str:
    """A help text in both languages, of which `BilingualCommand` shows one."""
    return f"{en}{_SEPARATOR}{zh}"


def example(*arguments: str) -> str:
    """The last line of a command's help."""
    command = " ".join(("infra-lab", *arguments))
    return both(f"Example: {command}", f"示例：{command}")


class BilingualCommand(Command):
    """A command whose help is in the learner's language; its texts are made by `both`."""

    _language = "en"

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except InfraLabError as error:
            self._label(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:  # in a group, whose `main` knows nothing of languages
            return super().invoke(ctx)
        except InfraLabError as error:
            self._label(error)
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._language = _help_language(args)
        given = [ctx.command_path.removeprefix("infra-lab "), *args]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if self._language == "zh" and is_usage_error(error):
                said = UsageError(_in_chinese(explain_usage(error, given)))
                self._label(said)
                raise said from None
            raise

    def _label(self, error: InfraLabError) -> None:
        error.label = speaker(self._language)(error.label, "错误：")

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx))
        prefix = speaker(self._language)("Usage: ", "用法：")
        formatter.write_usage(ctx.command_path, pieces, prefix)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self._half(self.help))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        say = speaker(self._language)
        arguments = [
            (one.metavar, self._half(one.help)) for one in self._parameters(ctx, "argument")
        ]
        options = []
        for one in self._parameters(ctx, "option"):
            names, text = one.get_help_record(ctx)
            if one.name == "help":  # typer's own, and in English only
                text = both(text, "显示这段帮助。")
            options.append((names, self._half(text)))
        for title, rows in (
            (say("Arguments:", "参数："), arguments),
            (say("Options:", "选项："), options),
        ):
            if rows:
                formatter.write_paragraph()
                formatter.write(f"{title}\n")
                with formatter.indentation():
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(self._half(self.epilog))

    def _half(self, text: str | None) -> str:
        en, _, zh = (text or "").partition(_SEPARATOR)
        return zh if self._language == "zh" and zh else en


class BilingualGroup(TyperGroup):
    """A group of such commands; a wrong command's name is explained in the learner's language."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if _help_language(args) == "zh" and is_usage_error(error):
                said = UsageError(_in_chinese(explain_usage(error, args)))
                said.label = "错误："
                raise said from None
            raise


def _in_chinese(line: str) -> str:
    said, _, see = line.partition(" (see ")
    for pattern, chinese in _USAGE:
        if match := re.fullmatch(pattern, said):
            return f"{match.expand(chinese)}（参见 {see.removesuffix(')')}）"
    return line


def _help_language(args: Sequence[str]) -> str:
    """Of a command line that is not parsed yet; help shows even where a language is wrong."""
    wanted = None
    for index, one in enumerate(args):
        if one == "--lang":
            wanted = args[index + 1] if index + 1 < len(args) else None
        elif one.startswith("--lang="):
            wanted = one.removeprefix("--lang=")
    try:
        return choose_language(wanted)
    except UsageError:
        return "en"
