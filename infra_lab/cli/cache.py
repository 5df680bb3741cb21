"""`infra-lab cache show`: the prefix cache after some prompts, as a tree.

Answers "what exactly do my prompts share?": run them, and see where they part.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from infra_lab.cli.options import (
    AsJson,
    AttentionName,
    CacheDir,
    Command,
    Device,
    Dtype,
    KVCacheMB,
    Model,
    count_option,
    new_app,
)
from infra_lab.cli.session import EngineOptions, load_llm
from infra_lab.cli.terminal import make_console, print_json, print_table
from infra_lab.config import DEFAULT_BLOCK_SIZE
from infra_lab.errors import UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from infra_lab.cache.radix_tree import RadixNode, RadixTree
    from infra_lab.engine.llm import LLM
    from infra_lab.outputs import RequestOutput

app = new_app(
    help="Look into the prefix cache.",
    epilog='Example: infra-lab cache show "What is a KV cache?" "What is a GPU?"',
)


@app.callback()
def main() -> None:
    """Keeps `show` a command of its own where it is the only one."""


PREVIEW = 60  # characters of a node's text


@app.command(
    cls=Command,
    epilog='Example: infra-lab cache show "What is a KV cache?" "What is a GPU?" --block-size 8',
)
def show(
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="Run one after the other.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More prompts, one on each line.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message before each of them.")
    ] = None,
    max_tokens: Annotated[int, count_option("Output tokens of each.")] = 16,
    block_size: Annotated[int, count_option("Tokens in one KV-cache block.")] = DEFAULT_BLOCK_SIZE,
    raw: Annotated[
        bool, typer.Option("--raw", help="Run the text as it stands, without the chat template.")
    ] = False,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "auto",
    device: Device = "auto",
    attention: AttentionName = "auto",
    kv_cache_mb: KVCacheMB = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Run prompts, and show what the prefix cache then holds and who found what in it.

    Blocks are shared from the first token on, and whole: a prompt finds the longest path from a
    root that it begins with, but never its own last token, which is what is sampled from.
    """
    from infra_lab.cache.radix_tree import radix_tree
    from infra_lab.sampling_params import SamplingParams

    given = [*(prompts or []), *_lines(file)]
    if not given:
        raise UsageError("no prompts: give some, or --file FILE with one on each line")
    if raw and system is not None:
        raise UsageError("--raw runs the text as it stands: leave --system out, or --raw")
    options = EngineOptions(model, cache_dir, dtype, device, kv_cache_mb, attention)
    llm = load_llm(options, None, block_size=block_size)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    outputs = [llm.generate(_prompt(llm, text, system, raw), params)[0] for text in given]
    tree = radix_tree(llm.engine.scheduler.kv_cache.pool)
    if as_json:
        print_json(_as_dict(llm, given, outputs, tree))
    else:
        _print(llm, given, outputs, tree)


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    return [line for line in text.splitlines() if line.strip()]


def _prompt(llm: LLM, text: str, system: str | None, raw: bool) -> Any:
    if raw or llm.tokenizer.chat_template is None:
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return llm.tokenizer.apply_chat_template([*messages, {"role": "user", "content": text}])


def _print(llm: LLM, given: list[str], outputs: list[RequestOutput], tree: RadixTree) -> None:
    console = make_console()
    block_size = llm.engine.config.block_size
    shown = Tree(f"{tree.num_blocks} cached blocks of {block_size} tokens")
    for root in tree.roots:
        _add(shown, root, llm)
    console.print(shown)
    if tree.num_unreachable:
        console.print(
            f"{tree.num_unreachable} blocks more cannot be found: their beginning is gone"
        )
    table = Table("prompt", title="\nwhat each prompt found", title_justify="left")
    for name in ("tokens", "cached", "share"):
        table.add_column(name, justify="right")
    for text, output in zip(given, outputs, strict=True):
        tokens, cached = len(output.prompt_token_ids), output.num_cached_tokens
        table.add_row(escape(_preview(text)), f"{tokens}", f"{cached}", f"{cached / tokens:.0%}")
    print_table(table)
    stats = llm.engine.scheduler.prefix_cache_stats
    console.print(f"{stats.hit_tokens} of {stats.tokens} tokens were cached: {stats.hit_rate:.0%}")


def _add(above: Tree, node: RadixNode, llm: LLM) -> None:
    text = escape(_preview(llm.tokenizer.decode(node.token_ids)))
    blocks = f"{len(node.block_ids)} block{'s' * (len(node.block_ids) > 1)}"
    here = above.add(f"{text} [dim]({blocks}, {len(node.token_ids)} tokens)[/dim]")
    for child in node.children:
        _add(here, child, llm)


def _preview(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def _as_dict(
    llm: LLM, given: list[str], outputs: list[RequestOutput], tree: RadixTree
) -> dict[str, Any]:
    def node_dict(node: RadixNode) -> dict[str, Any]:
        return {
            "text": llm.tokenizer.decode(node.token_ids),
            "token_ids": node.token_ids,
            "block_ids": node.block_ids,
            "children": [node_dict(child) for child in node.children],
        }

    stats = llm.engine.scheduler.prefix_cache_stats
    return {
        "block_size": llm.engine.config.block_size,
        "num_blocks": tree.num_blocks,
        "num_unreachable": tree.num_unreachable,
        "roots": [node_dict(root) for root in tree.roots],
        "requests": [
            {
                "prompt": text,
                "num_prompt_tokens": len(output.prompt_token_ids),
                "num_cached_tokens": output.num_cached_tokens,
            }
            for text, output in zip(given, outputs, strict=True)
        ],
        "tokens": stats.tokens,
        "hit_tokens": stats.hit_tokens,
    }
