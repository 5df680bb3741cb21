"""Code on a page: from a tested file by name, folded under its path, linked to its API page."""

from __future__ import annotations

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.sources import Excerpt, find_source
from infra_lab.texts import Language


def code_lines(reference: str, facts: Facts, language: Language, up: str) -> list[str]:
    """A folded block: closed, since an excerpt is longer than the sentence that brings it in."""
    found = facts.once(find_source, reference, facts.root)
    fence = "````" if "```" in found.text else "```"
    body = [
        f'{fence}python linenums="{found.first_line}"',
        *found.text.split("\n"),
        fence,
    ]
    lines = [f'??? code "{found.path} · {found.name}"', ""]
    lines += [f"    {line}" if line else "" for line in body]
    link = _link(found, language, up)
    return [*lines, "", f"    {link}"] if link else lines


def _link(found: Excerpt, language: Language, up: str) -> str:
    """To the documentation of the module, which the English site alone has."""
    if found.module is None:
        return ""
    root = f"{up}../" if language == "zh" else up
    page = found.module.replace(".", "/")
    anchor = f"{found.module}.{found.name}"
    is_private = any(part.startswith("_") for part in found.name.split("."))
    target = f"{root}reference/{page}/{'' if is_private else f'#{anchor}'}"
    text = pick(("API reference of", "API 参考（英文）："), language)
    # Raw HTML: MkDocs would look for a source file behind a Markdown link.
    return f'<a href="{target}">{text} <code>{found.module}</code></a>'
