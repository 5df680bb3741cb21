"""No number that could be computed stands in a page's prose: it would go stale, or be wrong.

What is left as text: small counts, years, the given premises of a question (4K of context, a batch
of 32, a card of 80 GB), names (Llama-3-70B, H100, FP16), versions, and places in a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.hooks.contract import HEADINGS
from docs.hooks.faults import Fault
from docs.hooks.markers import MARKER
from docs.hooks.page import Page

SMALL_COUNT = 16
LARGE_COUNT = 100
UNLINTED_SECTIONS = ("Sources", "来源")

_UNITS = (
    r"%|％|‰|[KMGTP]i?B(?:/s|ps)?|[kKMGT]?bytes?|[kMG]?bits?|字节|比特|[munµμ]?s|毫秒|微秒|秒|"
    r"seconds?|minutes?|分钟|hours?|小时|x|×|times|倍|(?:[KMGTPE]?FLOP/?s?)|FLOPS|"
    r"tokens?/s|tok/s|req/s|QPS|W|GHz|MHz|dB|percent|个百分点"
)
_NUMBER = re.compile(
    r"(?<![\w.])(?P<number>\d[\d,]*(?:\.\d+)?)(?P<unit>[ \u00a0-]?(?:" + _UNITS + r")(?![A-Za-z]))?"
)

# A number goes on behind what was read of it, or a unit makes it a quantity: no name or place then.
_ENDS = r"(?![.,]?\d)(?!\s*-?(?:" + _UNITS + r")(?![A-Za-z]))"
_SIZES = r"(?:\d{1,2}|128|256|512)" + _ENDS

# What may stand as text. Each is cut out of the line before numbers are looked for. Letters count
# in either case but for (?-i:...): "an A100" is a card, "a 100" an article and a number.
ALLOWED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"`+[^`]*`+",  # code
        r"\{\{.*?\}\}",  # a marker
        r"<[^>]*>",  # HTML and autolinks
        r"\]\([^)]*\)",  # the target of a link
        r"https?://\S+",
        r"\b(?:19|20)\d\d(?:-\d\d(?:-\d\d)?)?\b" + _ENDS,  # years and dates
        r"\b(?:arxiv:?\s*)?\d{4}\.\d{4,5}\b" + _ENDS,  # papers
        r"(?:§|#|\b(?:sections?|figures?|fig\.|tables?|algorithms?|equations?|eq\.|theorems?|appendix|"
        r"chapter|page|p\.|lines?|issues?|RFC|PEP)|图|表|算法|定理)\s*#?\d+(?:\.\d+)*" + _ENDS,
        r"第\s*\d+(?:\.\d+)*\s*(?:节|章|页|行|步|层|个|轮)",
        # versions: a name and its number
        r"\b(?:v|vLLM|SGLang|PyTorch|torch|CUDA|Triton|Python|Linux|gcc|glibc|transformers|"
        r"PCIe|NVLink|TensorRT-LLM|C\+\+|Ray|NCCL|cuDNN|kernel)\s*v?\d{1,2}(?:\.\d+)*\b" + _ENDS,
        # models, cards and formats
        r"\b[A-Z][A-Za-z]*(?:-?\d+(?:\.\d+)?)*(?:-[A-Za-z]+)*-\d+(?:\.\d+)?[BM]\b",
        r"\b(?:Llama|Qwen|GPT|OPT|SmolLM|Mixtral|Mistral|Gemma|Phi|DeepSeek|PaLM|BERT)[- ]?"
        r"[vVR]?\d+(?:\.\d+)*(?:[- ]?\d+(?:\.\d+)?[BM])?\b" + _ENDS,
        r"\b\d+(?:\.\d+)?(?-i:[BM])(?=\b|[\u4e00-\u9fff])",  # 7B, 135M parameters
        r"\b(?-i:[ABHVLT]|GB)\d{1,4}[A-Z]{0,2}\b(?![.,]\d)",  # A100, H200, GB200, L40S, T5
        r"\b(?-i:RTX|MI) ?\d{1,4}[A-Z]{0,2}\b" + _ENDS,
        r"\b(?:sm_?|gfx)\d+[a-z]?\b",
        r"\b(?:BF|FP|TF|INT|UINT|NF|MXFP|NVFP|W|Q|E)\d+(?:[AMGKV_]\w*)*\b",
        r"(?<![\d.,])\d+[Kk](?=\b|[\u4e00-\u9fff])" + _ENDS,  # a context of 4K, 128K
        r"\b(?:batch|block|group|page|tile)(?:[ -]size)?(?:\s+of)?\s+" + _SIZES,
        r"(?:batch|批大小|批次|块大小|分组|组大小)(?:\s*(?:为|是|=|取))?\s*" + _SIZES,
        r"(?<![\d.,])(?:16|24|32|40|48|64|80|96|128|141|180|192|256|288)[ -]?Gi?B\b(?!/)",  # a card
        r"(?<![\d.,])(?:128|256|512|1,?024|2,?048|4,?096|8,?192|16,?384|32,?768|65,?536|131,?072)\b"
        # powers of two: lengths and sizes that a question gives
        r"(?:(?=[ -]?(?:bytes?\b|字节)(?!\s*/))|" + _ENDS + ")",
        r"\b(?:HTTP|status|状态码)\s*\d{3}\b" + _ENDS,
        r"^\s*\d+[.)]\s",  # a numbered list
        r"(?<![\d.,])\d+-?bit\b|(?<![\d.,])\d+\s*(?:比特|位)",  # a width is a premise
    )
)


def lint(page: Page) -> list[Fault]:
    """A fault for each number of the page's prose, front matter included, that should come from a
    claim or a calculator."""
    return [
        Fault(
            page.path, number, f"{found!r} is typed by hand: take it from a claim or a calculator"
        )
        for number, text, is_math in _prose(page)
        for found in typed_numbers(text, is_math)
    ]


def typed_numbers(text: str, is_math: bool = False) -> list[str]:
    """The numbers of one line that may not stand there. In a formula whole numbers may: they are
    what the question gives."""
    for pattern in ALLOWED:
        text = pattern.sub(" ", text)
    return [found[0].strip() for found in _NUMBER.finditer(text) if _is_computed(found, is_math)]


def _is_computed(found: re.Match[str], is_math: bool) -> bool:
    digits = found["number"].replace(",", "").rstrip(".")
    if "." in digits:
        return True
    value = int(digits)
    if is_math or value <= SMALL_COUNT:
        return False
    return value >= LARGE_COUNT or found["unit"] is not None


def _prose(page: Page) -> Iterator[tuple[int, str, bool]]:
    yield from ((number, text, False) for number, text in _front_lines(page))
    in_math, skipped = False, False
    for line in page.lines:
        if line.fence is not None:
            if line.language == "mermaid" and not line.is_delimiter:
                yield line.number, line.text, False
            continue
        if line.text.startswith("## "):
            skipped = line.text[3:].strip() in UNLINTED_SECTIONS
        is_given = line.text[3:].strip() in (*HEADINGS["en"], *HEADINGS["zh"])
        if skipped or is_given or MARKER.match(line.text):
            continue
        for index, part in enumerate(line.text.split("$$")):
            if index:
                in_math = not in_math
            yield from _split_inline_math(line.number, part, in_math)


def _split_inline_math(number: int, text: str, in_math: bool) -> Iterator[tuple[int, str, bool]]:
    if in_math:
        yield number, text, True
        return
    formulas = re.compile(r"(?<!\\)\$([^$]+)\$")
    yield number, formulas.sub(" ", text), False
    for found in formulas.finditer(text):
        yield number, found[1], True


def _front_lines(page: Page) -> Iterator[tuple[int, str]]:
    """The lines of the front matter that carry sentences: not slugs, ids and settings."""
    if page.first_line == 1 or not page.path.is_file():
        return
    prose = False
    lines = page.path.read_text(encoding="utf-8").split("\n")[: page.first_line - 1]
    fenced = False
    for number, line in enumerate(lines, 1):
        found = re.match(r"(\w+):", line)
        if found:
            prose = found[1] in ("title", "description", "key_points", "follow_ups")
        if line.strip().startswith("```"):
            fenced = not fenced
            continue
        if prose and not fenced:
            yield number, line
