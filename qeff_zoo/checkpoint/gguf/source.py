# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with GGUF weights: configuration and tokenizer from the original model, or from the file itself."""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.files import Access, Files, LocalFiles, is_wanted, some
from qeff_zoo.checkpoint.gguf.index import GgufHeader, read_shards
from qeff_zoo.checkpoint.hub_snapshot import open_snapshot
from qeff_zoo.checkpoint.weight_files import gguf_entry, shards_of
from qeff_zoo.disk.user_paths import similar_path
from qeff_zoo.errors import CheckpointError, ZooError
from qeff_zoo.versions import installed

#: Raised if the same file gives another configuration or tokenizer.
_REVISION = 5


@dataclass(frozen=True, kw_only=True)
class Found:
    """Location of a GGUF checkpoint.

    Args:
        name: Name for display.
        model_id: `org/name` of a Hub model; None for a local one.
        revision: Commit of a Hub model; None for a local one.
        files: Source of its files.
        file: Name of one of its GGUF files.
        original: Source of its configuration and tokenizer: a path, or a Hub id.
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
    access: Access,
) -> Found:
    """Return the location of a GGUF checkpoint and the source of its configuration.

    Args:
        model: Model as the user wrote it.
        path: Path of a GGUF file, or of its folder; None for a Hub `model`.
        gguf_file: Name of the file in the folder or repository, or its quantization.
        config_from: See `open_checkpoint`.
        revision: Revision of a Hub model.
        access: `token` and `cache_dir`, see `open_checkpoint`.

    Raises:
        CheckpointError: A file is missing or damaged.
        UnsupportedModelError: There is no configuration, and the file's metadata are insufficient.
    """
    if path is None:
        snapshot = open_snapshot(model, revision, is_wanted, need_config=False, **access)
        files: Files = snapshot
        name, pinned, file = model, snapshot.revision, gguf_entry(files, str(gguf_file))
    else:
        path = path.absolute()
        name, pinned, file = path.stem, None, path.name
        if gguf_file is not None:
            file = gguf_entry(LocalFiles.of(path), gguf_file) if path.is_dir() else gguf_file
            name, path = path.resolve().name, path / file
        there = [shard for shard in shards_of(file) if (path.parent / shard).is_file()]
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


def warn_of_differences(name: str, config: Mapping[str, Any], header: GgufHeader) -> None:
    """Warn of values that a file's metadata and its configuration set differently; the configuration counts.

    Args:
        name: Name of the checkpoint.
        config: Configuration of the language model, from another source than the file.
        header: Header of the file.
    """
    from qeff_zoo.checkpoint.gguf.config import config_of

    try:
        converted = config_of(name, header)
    except ZooError:  # metadata that make no configuration cannot be compared
        return
    theta = _theta(converted), _theta(config)
    pairs = {key: (value, config[key]) for key, value in converted.items() if key in config}
    differing = [
        f"{key} {one!r} in the file and {other!r} in the configuration"
        for key, (one, other) in {**pairs, "rope_theta": theta}.items()
        if _is_number(one) and _is_number(other) and not math.isclose(one, other, rel_tol=1e-5)
    ]
    if differing:
        warnings.warn(
            f"{name!r} and its configuration differ: {some(differing)}. The configuration is used. Remove the "
            "config.json beside the file to use the file's metadata, or name the original with --config-from.",
            stacklevel=3,
        )


def _theta(config: Mapping[str, Any]) -> Any:
    """Return the base of RoPE; None if layers differ, or there is none."""
    rope = config.get("rope_parameters")
    return (rope if isinstance(rope, Mapping) else config).get("rope_theta")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_files(files: Files, file: str) -> None:
    wanted = shards_of(file)
    missing = [one for one in wanted if one not in files.names]
    if missing or not file.endswith(".gguf") or "/" in file or "\\" in file:
        local = isinstance(files, LocalFiles)
        near = similar_path(str(files.folder / file)) if local and "/" not in file else ""
        raise CheckpointError(
            f"No GGUF file {some(missing or wanted)} in {files}. Expected the name of a file there that ends in "
            f"'.gguf', and of one that was split all its parts.{near} Check the name, or get the missing files."
        )


def _original(files: Files, file: str) -> str:
    """Return the configuration beside a file, or create one from its metadata."""
    if (files.folder / "config.json").is_file():
        return str(files.folder)
    files.fetch(shards_of(file))  # the only source of the configuration
    paths = [files.folder / shard for shard in shards_of(file)]
    return str(_from_metadata(paths, read_shards(paths)))


def _from_metadata(paths: list[Path], header: GgufHeader) -> Path:
    """Return a folder of the store with the configuration and the tokenizer of a file's metadata."""
    from qeff_zoo.checkpoint.gguf.config import config_of, pooling_of
    from qeff_zoo.checkpoint.gguf.sampling import sampling_of
    from qeff_zoo.store import Store

    config = config_of(paths[0].name, header)
    sampled = sampling_of(paths[0].name, header.metadata)
    store = Store()
    key = f"gg{_REVISION}-{header.digest}-{str(installed('transformers')).replace('.', '-')}"
    if folder := store.companions(key):
        return folder
    from qeff_zoo.checkpoint.gguf.tokenizer import tokenizer_of

    tokenizer = tokenizer_of(paths[0])
    ends = {"eos_token_id": list(tokenizer.ends)} if len(tokenizer.ends) > 1 else {}
    contents: dict[str, Any] = {
        "config.json": {**config, **tokenizer.ids},
        "generation_config.json": {**tokenizer.ids, **ends, **sampled},
    }
    if pooling := pooling_of(header.metadata):
        contents |= _modules(pooling, header)
    with store.stage("companions") as staged:
        tokenizer.tokenizer.save_pretrained(staged)
        for name, content in contents.items():
            (staged / name).parent.mkdir(exist_ok=True)
            (staged / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return store.promote_companions(staged, key)


def _modules(pooling: str, header: GgufHeader) -> dict[str, Any]:
    """Return sentence-transformers' files of an embedding model: pooling, dense layers, normalization.

    Args:
        pooling: Mode of the pooling.
        header: Header of the file, with a matrix of each dense layer.
    """
    dense = {name: header.tensors.get(f"dense_{name[0]}.weight") for name in ("2_Dense", "3_Dense")}
    shapes = {name: info.shape for name, info in dense.items() if info is not None}
    folders = ["", "1_Pooling", *shapes, f"{2 + len(shapes)}_Normalize"]  # llama.cpp's programs do
    kinds = [place.partition("_")[2] or "Transformer" for place in folders]
    layers = {
        f"{name}/config.json": {
            "in_features": columns,
            "out_features": rows,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        for name, (rows, columns) in shapes.items()
    }
    return {
        "modules.json": [
            {"path": place, "type": f"sentence_transformers.models.{kind}"}
            for place, kind in zip(folders, kinds, strict=True)
        ],
        "1_Pooling/config.json": {"pooling_mode": pooling},
        **layers,
    }
