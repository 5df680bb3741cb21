"""`<!-- steps name -->`: a figure to step through; `figures` makes its data, with the engine's own
parts or, for tiles and bubbles, from the arithmetic."""

from __future__ import annotations

from docs.hooks.cards import pick
from docs.hooks.facts import near
from docs.hooks.faults import MarkerError
from infra_lab.texts import Language

FIGURES = {
    "block-tables": ("Block tables filling, forking and freeing", "块表的填充、分叉与释放"),
    "batch-over-time": (
        "A batch over time: static and continuous",
        "批次随时间变化：静态与连续批处理",
    ),
    "flash-tiles": ("Tiles of FlashAttention", "FlashAttention 的分块"),
    "prefix-radix": ("The hash chain of a prefix cache", "前缀缓存的哈希链"),
    "pipeline-bubbles": ("Bubbles of a pipeline", "流水线气泡"),
}


def steps_lines(name: str, language: Language, up: str) -> list[str]:
    """The element that the player fills, and what stands there without JavaScript."""
    if name not in FIGURES:
        raise MarkerError(f"there is no stepwise figure {name!r}{near(name, FIGURES)}")
    title = pick(FIGURES[name], language)
    data = f"{up}assets/data/steps/{name}.json"
    fallback = pick(("This figure needs JavaScript.", "此图需要 JavaScript。"), language)
    return [
        f'<figure class="steps" data-steps="{data}" data-language="{language}" '
        f'aria-label="{title}"><figcaption>{title}</figcaption>'
        f"<noscript>{fallback}</noscript></figure>"
    ]
