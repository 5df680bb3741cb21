"""Makes the proposer that a config asks for, and refuses drafts that could not be verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra_lab.attention.backend import AttentionBackend, AttentionShape
from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.config import TOKENS_PER_KEY_GROUP, EngineConfig
from infra_lab.engine.speculation import Speculation
from infra_lab.errors import UsageError
from infra_lab.layers.linear import DenseLinear, PackedLinear
from infra_lab.layers.lora import LoRALinear
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.models.parameters import num_parameters
from infra_lab.models.registry import model_class
from infra_lab.models.weights import Weights
from infra_lab.speculative.draft_model import DraftModelProposer
from infra_lab.speculative.ngram import NgramProposer
from infra_lab.speculative.proposer import Proposer
from infra_lab.speculative_config import SpeculativeConfig
from infra_lab.worker.decoder_runner import DecoderRunner

# What one more token adds to a step, in units of what the step costs without any. Of SmolLM2-135M
# in fp32 on one core of a busy machine: 2.6 ms a row from 8 rows to 40, over 80 ms. On a GPU the
# weights' way from memory hides it.
CPU_ROW_COST = 0.03
# With its weights packed in 4 and 8 bits a step's fixed part, which is reading them, is a fifth:
# the products take 9.6 ms of one core at 1 row, 14.9 at 4 and 53.5 at 25.
PACKED_CPU_ROW_COST = 0.2
GPU_ROW_COST = 0.01

ChooseBackend = Callable[[AttentionShape], AttentionBackend[Any]]


def check_draft_vocabulary(target: ModelConfig, draft: ModelConfig) -> None:
    """Raises UsageError where a token id means another token, or none, to the draft model."""
    if draft.vocab_size != target.vocab_size:
        raise UsageError(
            f"the draft model has a vocabulary of {draft.vocab_size:,} tokens and the model one of "
            f"{target.vocab_size:,}: a draft must be of the same vocabulary; take a smaller model "
            f"of the same family, or draft_layers"
        )


def check_draft_tokenizer(target: Any, draft: Any) -> None:
    """The same of two tokenizers (models.tokenizer.Tokenizer): token by token."""
    ours, theirs = (one.backend.get_vocab(with_added_tokens=True) for one in (target, draft))
    differing = sorted(ours.items() ^ theirs.items())
    if differing:
        token, token_id = differing[0]
        raise UsageError(
            f"the draft model's vocabulary is another: {len(differing)} entries differ, {token!r} "
            f"with id {token_id} among them; take a smaller model of the same family, or "
            f"draft_layers"
        )


def load_draft_model(
    config: EngineConfig,
    model: DecoderForCausalLM,
    checkpoint: Checkpoint | None,
    max_model_len: int,
) -> DecoderForCausalLM | None:
    """The model that drafts, of the target's dtype and on its device; None where none does.

    checkpoint: of `config.speculative.draft_model`, if that is given.
    """
    speculative = config.speculative
    if speculative is None or speculative.method != "draft_model":
        return None
    if speculative.draft_layers is not None:
        return model.first_layers(speculative.draft_layers)
    if checkpoint is None:
        raise UsageError(
            f"the draft model {speculative.draft_model!r} was not opened: give its checkpoint too"
        )
    check_draft_vocabulary(model.config, checkpoint.config)
    weights = Weights(checkpoint, model.dtype, model.device)
    positions = min(max_model_len, checkpoint.config.max_position_embeddings)
    return model_class(checkpoint.config.architecture)(checkpoint.config, weights, positions)


def build_speculation(
    config: EngineConfig,
    model: DecoderForCausalLM,
    draft_model: DecoderForCausalLM | None,
    kv_cache: KVCacheManager,
    max_model_len: int,
    choose_backend: ChooseBackend,
) -> Speculation | None:
    """What drafts between steps, as `config.speculative` says; None where nothing does."""
    speculative = config.speculative
    if speculative is None:
        return None
    if draft_model is None:
        proposer: Proposer = NgramProposer(*speculative.lookup_lengths)
    else:
        proposer = _draft_model_proposer(
            config, speculative, model, draft_model, kv_cache, max_model_len, choose_backend
        )
    group_size = TOKENS_PER_KEY_GROUP if config.kv_cache_dtype == "int8_per_channel_keys" else 0
    return Speculation(speculative, proposer, kv_cache, max_model_len, _row_cost(model), group_size)


def _row_cost(model: DecoderForCausalLM) -> float:
    if model.device.type != "cpu":
        return GPU_ROW_COST
    product = model.layers[0].mlp.down
    base = product.base if isinstance(product, LoRALinear) else product
    is_dense = isinstance(base, (DenseLinear, PackedLinear))
    return CPU_ROW_COST if is_dense else PACKED_CPU_ROW_COST


def _draft_model_proposer(
    config: EngineConfig,
    speculative: SpeculativeConfig,
    model: DecoderForCausalLM,
    draft_model: DecoderForCausalLM,
    kv_cache: KVCacheManager,
    max_model_len: int,
    choose_backend: ChooseBackend,
) -> DraftModelProposer:
    # Block ids go up to the number of usable blocks: 0 is the null block.
    num_blocks = kv_cache.num_usable_blocks + 1
    scratch_per_request = kv_cache.num_blocks_for(speculative.num_speculative_tokens)
    num_scratch_blocks = config.max_num_seqs * scratch_per_request
    decoder = DecoderRunner(
        draft_model,
        choose_backend(draft_model.attention_shape),
        num_blocks + num_scratch_blocks,
        config.block_size,
        config.pretouch_kv_cache,
    )
    return DraftModelProposer(
        decoder,
        num_blocks,
        num_scratch_blocks,
        min(max_model_len, draft_model.config.max_position_embeddings),
        config.max_num_batched_tokens,
        # A small step reads every weight once and does little else.
        relative_cost=num_parameters(draft_model.config) / num_parameters(model.config),
    )
