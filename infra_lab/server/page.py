"""The chat page at `/`: one file that asks nothing of anybody but this server."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter()
_PAGE = files("infra_lab.server").joinpath("static/chat.html").read_text(encoding="utf-8")


def _policy(page: str) -> str:
    """What a browser may run and call: the script and style in the file, by their hash, and the
    server that it came from. What a model writes into the page can thus never run."""
    hashes = {}
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[tag] = f"'sha256-{digest}'"
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; "
        f"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'"
    )


_HEADERS = {"Content-Security-Policy": _policy(_PAGE), "X-Content-Type-Options": "nosniff"}


@router.get("/", include_in_schema=False)
async def chat_page() -> Response:
    return Response(_PAGE, media_type="text/html", headers=_HEADERS)
