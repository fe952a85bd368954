# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose weights are GGUF: configuration and tokenizer from the original model, or from the file itself."""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.files import Files, LocalFiles, is_wanted, some
from qeff_zoo.checkpoint.gguf_index import GgufHeader, read_shards, shards_of
from qeff_zoo.checkpoint.hub_snapshot import open_snapshot
from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.formats import gguf_names
from qeff_zoo.versions import installed

#: Raised when the same file comes to give another configuration or tokenizer.
_REVISION = 1
#: Metadata of the architecture -> configuration.
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "attention.value_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_NEEDED = (*tuple(_KEYS)[:5], "attention.layer_norm_rms_epsilon")
#: Metadata of the tokenizer -> configuration.
_TOKENS = {
    f"tokenizer.ggml.{name}_token_id": f"{short}_token_id"
    for name, short in (("bos", "bos"), ("eos", "eos"), ("padding", "pad"))
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where a GGUF checkpoint is.

    Args:
        name: For display.
        model_id: `org/name` of a Hub model; None for a local one.
        revision: Commit of a Hub model; None for a local one.
        files: Where its files come from.
        file: Name of one of its GGUF files.
        original: What its configuration and tokenizer are taken from: a path, or a Hub id.
    """

    name: str
    model_id: str | None
    revision: str | None
    files: Files
    file: str
    original: str


def find(
    model: str,
    path: Path | None,
    gguf_file: str | None,
    config_from: str | None,
    revision: str | None,
) -> Found:
    """Find a GGUF checkpoint and what its configuration is taken from.

    Args:
        model: As the user named it.
        path: Of a GGUF file, or of the folder that has it; None for a Hub `model`.
        gguf_file: Name of the file in the folder or repository.
        config_from: See `open_checkpoint`.
        revision: Of a Hub model.

    Raises:
        CheckpointError: A file is missing or damaged.
        UnsupportedModelError: There is no configuration, and none can be made of the file.
    """
    if path is None:
        snapshot = open_snapshot(model, revision, is_wanted, need_config=False)
        files: Files = snapshot
        name, pinned, file = model, snapshot.revision, str(gguf_file)
    else:
        path = path.absolute()
        name, pinned, file = path.stem, None, path.name
        if gguf_file is not None:
            name, file, path = path.resolve().name, gguf_file, path / gguf_file
        there = [one for one in shards_of(file) if (path.parent / one).is_file()]
        files = LocalFiles(path.parent, frozenset(there))
    _require_files(files, file)
    return Found(
        name=name,
        model_id=model if path is None else None,
        revision=pinned,
        files=files,
        file=file,
        original=config_from or _original(files, file),
    )


def _require_files(files: Files, file: str) -> None:
    wanted = shards_of(file)
    missing = [one for one in wanted if one not in files.names]
    if missing or not file.endswith(".gguf") or "/" in file or "\\" in file:
        raise CheckpointError(
            f"No GGUF file {some(missing or wanted)} in {files}. Expected the name of a file there that ends in "
            f"'.gguf', and of one that was split all its parts. Check the name, or get the missing files."
        )


def _original(files: Files, file: str) -> str:
    """Find a configuration beside a file, or make one of it."""
    if (files.folder / "config.json").is_file():
        return str(files.folder)
    files.fetch(shards_of(file))  # nothing else says what the model is
    paths = [files.folder / one for one in shards_of(file)]
    return str(_from_metadata(paths, read_shards(paths)))


def _from_metadata(paths: list[Path], header: GgufHeader) -> Path:
    """Return a folder of the store with the configuration and the tokenizer that a file's metadata make."""
    from qeff_zoo.store import Store

    config = config_of(paths[0].name, header)
    store = Store()
    key = f"gg{_REVISION}-{header.digest}-{str(installed('transformers')).replace('.', '-')}"
    if folder := store.companions(key):
        return folder
    with store.stage("companions") as staged:
        _tokenizer(paths[0], header.metadata).save_pretrained(staged)
        ids = {name: config[name] for name in _TOKENS.values() if name in config}
        for name, content in (("config.json", config), ("generation_config.json", ids)):
            (staged / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return store.promote_companions(staged, key)


def _tokenizer(path: Path, metadata: Mapping[str, Any]) -> Any:
    """Make transformers' tokenizer of a file; refuse one that would not begin and end texts as the file says."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        ids = tokenizer("a")["input_ids"]
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"transformers cannot make a tokenizer of {path.name!r}: {error}. Expected one that it knows. Name the "
            "checkpoint that it was made from with --config-from."
        ) from error
    for which, place in (("bos", 0), ("eos", -1)):
        wanted = metadata.get(f"tokenizer.ggml.add_{which}_token")
        added = bool(ids) and ids[place] == getattr(tokenizer, f"{which}_token_id")
        if wanted is not None and bool(wanted) != added:
            raise UnsupportedModelError(
                f"{path.name!r} says add_{which}_token {bool(wanted)}, which the tokenizer that transformers makes of "
                "it does not do. Expected the tokenizer's own files. Name the checkpoint that it was made from with "
                "--config-from."
            )
    return tokenizer


def config_of(name: str, header: GgufHeader) -> dict[str, Any]:
    """Make the config.json that a file's metadata say.

    Args:
        name: Of the file, for messages.
        header: Of the file.

    Raises:
        CheckpointError: The metadata contradict themselves.
        UnsupportedModelError: They do not say all that a configuration does, or something that none says.
    """
    metadata, tensors = header.metadata, header.tensors
    architecture = gguf_names.architecture_of(name, metadata)
    kind, alone = next(
        (
            (kind, one.alone)
            for kind, one in gguf_names.layouts().items()
            if one.architecture == architecture and one.alone is not None
        ),
        ("", {}),
    )
    said = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    if said.get("rope.scaling.type") == "none":
        del said["rope.scaling.type"]
    odd = [
        f"{architecture}.{key}" for key in said if key not in _KEYS or isinstance(said[key], array)
    ]
    odd += [f"no {architecture}.{key}" for key in _NEEDED if key not in said]
    odd += [one for one in ("rope_freqs.weight",) if one in tensors]
    if not kind or odd:
        why = f"its metadata have {some(odd)}" if kind else "which needs more than its metadata say"
        raise UnsupportedModelError(
            f"{name!r} is GGUF of architecture {architecture!r}, and no configuration can be made of it alone: {why}. "
            "Expected the checkpoint that it was made from beside it. Name that with --config-from."
        )
    config: dict[str, Any] = {"model_type": kind}
    for key, value in alone.items():
        config[key] = value["has"] in tensors if isinstance(value, dict) else value
    for key, value in said.items():
        value = float(f"{value:.7g}") if isinstance(value, float) else value  # float32 in the file
        if config.setdefault(_KEYS[key], value) != value:
            raise CheckpointError(
                f"{name!r} says {architecture}.{key} {value!r} and {_KEYS[key]} {config[_KEYS[key]]!r}. Expected "
                "one number. Name the checkpoint that it was made from with --config-from."
            )
    theta = config.pop("rope_theta", 10000.0)
    config |= {
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if "token_embd.weight" in tensors:
        config.setdefault("vocab_size", tensors["token_embd.weight"].shape[0])
    return config | {short: metadata[key] for key, short in _TOKENS.items() if key in metadata}
