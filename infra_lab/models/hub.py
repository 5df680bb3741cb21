"""A Hugging Face hub id to a local folder: weights, configs and tokenizer, nothing else.

What is already in the hub's cache is used as it is, without asking the network: a start-up
depends on no server. Torch-free; huggingface_hub is imported when a hub id is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from infra_lab.errors import ModelNotFoundError
from infra_lab.models.catalog import DEFAULT_MODEL

# The root of the repository only: subfolders hold other formats of the same weights.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]
_UNWANTED = ["*/*"]


def fetch_from_hub(hub_id: str) -> Path:
    """The folder of a hub model, downloaded if need be.

    Raises ModelNotFoundError that says what to do: no such model, no access, no network.
    """
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = _snapshot(hub_id, offline=True)
        if _is_whole(folder):
            return folder
    except HFValidationError as error:
        raise ModelNotFoundError(f"{hub_id!r} is no hub id: {error}") from error
    except LocalEntryNotFoundError:
        pass  # not in the hub's cache yet
    folder = _download(hub_id)
    if not _is_whole(folder):
        raise ModelNotFoundError(_unreadable(hub_id))
    return folder


def fetch_config_from_hub(hub_id: str) -> Path:
    """The folder of a hub model's config.json, without a byte of its weights.

    Raises ModelNotFoundError as `fetch_from_hub` does.
    """
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return _config_folder(hub_id, offline=True)
    except HFValidationError as error:
        raise ModelNotFoundError(f"{hub_id!r} is no hub id: {error}") from error
    except LocalEntryNotFoundError:
        return _explained(hub_id, _config_folder)


def _download(hub_id: str) -> Path:
    return _explained(hub_id, _snapshot)


def _explained(hub_id: str, fetch: Callable[..., Path]) -> Path:
    """What `fetch` brings from the hub, or the reason why it cannot, in our own words."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return fetch(hub_id, offline=False)
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"{hub_id!r} is gated: accept its licence at https://huggingface.co/{hub_id}, then "
            "run `hf auth login` or set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the Hugging Face hub has no model {hub_id!r}, or it is private: check the name, "
            "or run `hf auth login`"
        ) from error
    except RemoteEntryNotFoundError as error:  # the hub answered: it has no such file
        raise ModelNotFoundError(_unreadable(hub_id)) from error
    except Exception as error:  # the HTTP client below has errors of its own, and changes
        raise ModelNotFoundError(
            f"cannot fetch {hub_id!r}: the Hugging Face hub is out of reach and its cache has no "
            f"whole copy ({type(error).__name__}). Without a network, give a local folder, or set "
            f"HF_HUB_CACHE to a hub cache that has it, or use the default model {DEFAULT_MODEL}"
        ) from error


def _unreadable(hub_id: str) -> str:
    return (
        f"{hub_id!r} on the Hugging Face hub has no config.json with safetensors weights: "
        "infra-lab reads safetensors folders and .gguf files"
    )


def _snapshot(hub_id: str, offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            hub_id,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            local_files_only=offline,
        )
    )


def _config_folder(hub_id: str, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(hub_id, "config.json", local_files_only=offline)).parent


def _is_whole(folder: Path) -> bool:
    """config.json and every weight file that the index, where there is one, speaks of."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return False
    return all((folder / shard).is_file() for shard in shards)
