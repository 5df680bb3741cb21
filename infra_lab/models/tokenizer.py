"""Text to token ids and back, and chats to prompts, for any checkpoint.

The work is done by the `tokenizers` library underneath transformers; transformers itself, which
takes a second to import, is brought in for chat templates and for Hugging Face folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from infra_lab.errors import InvalidRequestError, ModelLoadError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
from infra_lab.models.gguf_tokenizer import build_tokenizer, chat_template, special_tokens
from infra_lab.models.text import require_text


class Tokenizer:
    """Attributes:
    backend: the `tokenizers.Tokenizer` that does the work.
    chat_template: Jinja source, or None for a model that has none.
    special_tokens: what a template may name, {"bos_token": "<s>", ...}.
    eos_token_ids: any of these ends a generation.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.backend = backend
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self.eos_token_ids = tuple(eos_token_ids)
        added = backend.get_added_tokens_decoder()
        self.all_special_ids = frozenset(index for index, token in added.items() if token.special)
        self._renderer: Any = None

    @property
    def vocab_size(self) -> int:
        """Tokens that text can become; a model's embedding may have more rows as padding."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """`add_special_tokens` adds BOS or EOS where the model's tokenizer does so.

        Raises InvalidRequestError for half a surrogate pair, which is no text.
        """
        require_text("the text", text)
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    @property
    def template_takes_tools(self) -> bool:
        """Whether the chat template itself tells the model of tools."""
        return self.chat_template is not None and "tools" in self.chat_template

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """The chat as token ids, ending where the assistant is to answer.

        Raises InvalidRequestError like `render_chat`.
        """
        text = self.render_chat(messages, add_generation_prompt, tools)
        # The template writes the special tokens itself, BOS among them.
        return self.encode(text, add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The chat as the text the model was trained on.

        Args:
            tools: functions that the model may call, in OpenAI's form, for a template that
                `template_takes_tools`; others would leave them out without a word.

        Raises InvalidRequestError when the model has no chat template, a message lacks a role
        or content or has half a surrogate pair in it, or the template itself refuses the
        conversation.
        """
        if self.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template: it completes text; give it a prompt instead"
            )
        checked = _checked_messages(messages)
        if tools and not self.template_takes_tools:
            raise InvalidRequestError("this model's chat template has no place for tools")
        from jinja2 import TemplateError

        try:
            rendered: str = self._template_renderer().apply_chat_template(
                checked,
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidRequestError(f"the chat template refuses the messages: {error}") from error
        return rendered

    def _template_renderer(self) -> Any:
        """Rendering needs transformers' template environment but no vocabulary."""
        if self._renderer is None:
            from tokenizers.models import BPE
            from transformers import PreTrainedTokenizerFast

            self._renderer = PreTrainedTokenizerFast(
                tokenizer_object=Backend(BPE()),
                chat_template=self.chat_template,
                **self.special_tokens,
            )
        return self._renderer


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that came with a checkpoint; never touches the network.

    Raises ModelLoadError when it is missing, damaged or of an unsupported kind.
    """
    if isinstance(checkpoint, GGUFCheckpoint):
        return _load_gguf(checkpoint)
    return _load_hugging_face(checkpoint.path, checkpoint.config.eos_token_ids)


def _load_gguf(checkpoint: GGUFCheckpoint) -> Tokenizer:
    return Tokenizer(
        build_tokenizer(checkpoint.header),
        chat_template=chat_template(checkpoint.header),
        special_tokens=special_tokens(checkpoint.header),
        eos_token_ids=checkpoint.config.eos_token_ids,
    )


def _load_hugging_face(folder: Path, eos_token_ids: Sequence[int]) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files raise whatever their parser raises
        raise ModelLoadError(
            f"{folder}: the tokenizer cannot be loaded ({error}); the folder needs tokenizer.json "
            "and tokenizer_config.json"
        ) from error
    if not loaded.is_fast:
        raise ModelLoadError(f"{folder}: the tokenizer has no fast version (no tokenizer.json)")
    template = loaded.get_chat_template() if loaded.chat_template else None
    named = {name: str(token) for name, token in loaded.special_tokens_map.items()}
    own_eos = [] if loaded.eos_token_id is None else [loaded.eos_token_id]
    return Tokenizer(
        loaded.backend_tokenizer,
        chat_template=template,
        special_tokens={name: token for name, token in named.items() if name.endswith("_token")},
        eos_token_ids=tuple(eos_token_ids) or own_eos,
    )


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not messages:
        raise InvalidRequestError(
            "messages must be a list of at least one {'role': ..., 'content': ...}, not "
            f"{messages!r}"
        )
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(
                f"messages[{index}] must have a role and content, not be {message!r}"
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise InvalidRequestError(
                    f"messages[{index}] needs a text {key!r}, not {message.get(key)!r}"
                )
            require_text(f"messages[{index}][{key!r}]", message[key])
    return [dict(message) for message in messages]
