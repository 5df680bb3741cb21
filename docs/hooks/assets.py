"""What a page loads: only what it uses, and nothing from another host."""

from __future__ import annotations

from collections.abc import Iterator

# What a page must contain, and the tags that then go into its head. {up} leads to the assets.
_ON_DEMAND = (
    (
        'class="arithmatex"',
        '<link rel="stylesheet" href="{up}assets/vendor/katex/katex.min.css">'
        '<script defer src="{up}assets/vendor/katex/katex.min.js"></script>'
        '<script defer src="{up}assets/vendor/katex/auto-render.min.js"></script>'
        '<script defer src="{up}assets/javascripts/math.js"></script>',
    ),
    # Material draws diagrams itself where it finds Mermaid, and would fetch it from a CDN.
    ('class="mermaid"', '<script src="{up}assets/vendor/mermaid/mermaid.min.js"></script>'),
    ("data-steps=", '<script type="module" src="{up}assets/javascripts/steps.js"></script>'),
    (
        "data-calculator",
        '<script type="module" src="{up}assets/javascripts/calculator_page.js"></script>',
    ),
)


def head_tags(html: str, up: str) -> Iterator[str]:
    """The tags that a built page still needs."""
    for needle, tags in _ON_DEMAND:
        if needle in html:
            yield tags.format(up=up)


def with_head_tags(html: str, up: str) -> str:
    tags = "".join(head_tags(html, up))
    return html.replace("</head>", f"{tags}</head>", 1) if tags else html
