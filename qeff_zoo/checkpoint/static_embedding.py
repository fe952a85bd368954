# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of static embeddings (model2vec): a module StaticEmbedding, without a configuration of transformers.

Input: the files of such a checkpoint. Output: a folder of the store with the same files in one place, the config.json
of `qeff_zoo.export.architectures.static_embedding`, and one row of weights for each token id.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.json_files import read_json, read_objects
from qeff_zoo.checkpoint.safetensors_index import TensorInfo, TensorReader, index_tensors
from qeff_zoo.checkpoint.sentence_transformers.files import (
    LISTED,
    STATIC,
    VECTORS,
    WEIGHTS,
    Module,
    read_modules,
    reader_of,
)
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import CheckpointError
from qeff_zoo.package.identity import digest
from qeff_zoo.registry import recipes_setting

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.files import Files

_TOKENIZER, _TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
_DOMAIN = "qz-static-1"
#: Names of the vectors, of sentence-transformers and of model2vec.
_NAMES = ("embedding.weight", "embeddings")
#: Tensors of model2vec that change the vectors of token ids.
_CHANGES = ("mapping", "weights")


def is_foreign(companions: Mapping[str, Path]) -> bool:
    """Return whether the first module of a checkpoint is a StaticEmbedding, and its config.json not in our form.

    Args:
        companions: Files beside the checkpoint, by relative path.
    """
    modules = read_modules(companions)
    if not modules or modules[0].kind != STATIC:
        return False
    return VECTORS not in reader_of(companions)("config.json")


def converted(files: "Files", companions: Mapping[str, Path]) -> Path:
    """Return the folder of the checkpoint in transformers' form; fetches the weights, which alone have the sizes.

    Args:
        files: Files of the checkpoint.
        companions: Small files by relative path.

    Raises:
        CheckpointError: Files of the module are missing, or not understood.
    """
    from qeff_zoo.store import Store

    modules = read_modules(companions)
    modules[0].require_own()
    inner = PurePosixPath(modules[0].folder)
    sources = {name: str(inner / name) for name in (_TOKENIZER, WEIGHTS)}
    behind = [
        str(PurePosixPath(module.folder) / WEIGHTS) for module in modules[1:] if module.folder
    ]
    copied = {**{name: name for name in (*companions, *behind) if name in files.names}, **sources}
    if missing := sorted({*sources.values()} - files.names):
        raise CheckpointError(
            f"{files} lacks {', '.join(missing)} of its module {STATIC}; expected its tokenizer and its weights in "
            "safetensors. Get the whole checkpoint."
        )
    files.fetch(sorted({*copied.values()}))
    paths = {name: files.folder / source for name, source in copied.items()}
    key = f"st1-{digest({name: sha256_file(path) for name, path in paths.items()}, _DOMAIN)}"
    store = Store()
    if folder := store.companions(key):
        return folder
    with store.stage("companions") as staged:
        _write(staged, paths, modules)
        return store.promote_companions(staged, key)


def _write(folder: Path, paths: Mapping[str, Path], modules: Sequence[Module]) -> None:
    for name, path in paths.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    rows, size = _vectors(folder / WEIGHTS)
    recipe = next(one for one in recipes_setting("detected_by") if VECTORS in one.detected_by)
    contents: dict[str, Any] = {
        "config.json": {
            "model_type": recipe.model_type,
            "architectures": [*recipe.architectures],
            VECTORS: True,
            "vocab_size": rows,
            "hidden_size": size,
        },
        _TOKENIZER_SETTINGS: {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **_truncation(paths[_TOKENIZER]),
        },
        LISTED: [
            {**one, "path": ""} if not place else one
            for place, one in enumerate(read_objects(paths[LISTED]))
        ],
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _truncation(tokenizer: Path) -> dict[str, Any]:
    """Return the length to which the tokenizer itself truncates, which sentence-transformers keeps."""
    truncation = read_json(tokenizer).get("truncation") or {}
    if not truncation:
        return {}
    side = str(truncation.get("direction", "Right")).lower()
    return {"model_max_length": truncation["max_length"], "truncation_side": side}


def _vectors(path: Path) -> tuple[int, int]:
    """Let a file have one vector for each token id, and return their number and size."""
    tensors = index_tensors([path])
    name = next((kind for kind in _NAMES if kind in tensors), None)
    if name is None or len(tensors[name].shape) != 2:
        raise CheckpointError(
            f"{str(path)!r} has the tensors {', '.join(sorted(tensors))}; expected a matrix {' or '.join(_NAMES)} of "
            f"module {STATIC}. Get the file again from its source."
        )
    rows, size = tensors[name].shape
    if name == _NAMES[0]:
        return rows, size
    if tensors.keys() & {*_CHANGES} or tensors[name].dtype not in ("F32", "F16"):
        rows = _fold(path, tensors)
    else:
        _save(path, _read(path, tensors, [name])[name])
    return rows, size


def _fold(path: Path, tensors: Mapping[str, TensorInfo]) -> int:
    """Write the vector of each token id, as model2vec's mapping and weights make it, and return their number."""
    import numpy as np

    if any(tensor.dtype == "BF16" for tensor in tensors.values()):
        raise CheckpointError(
            f"{str(path)!r} has vectors of BF16 with {' and '.join(_CHANGES)}; expected float32 or float16. Convert "
            "them."
        )
    arrays = _read(path, tensors, tensors.keys())
    vectors = arrays[_NAMES[1]].astype(np.float32)
    if "mapping" in arrays:
        vectors = vectors[arrays["mapping"].astype(np.int64)]
    if "weights" in arrays:
        vectors = vectors * arrays["weights"].astype(np.float32)[:, None]
    _save(path, vectors)
    return len(vectors)


def _read(path: Path, tensors: Mapping[str, TensorInfo], names: Collection[str]) -> dict[str, Any]:
    reader = TensorReader(dict(tensors))
    try:
        return {name: reader.read(name).copy() for name in names}
    finally:
        reader.close()


def _save(path: Path, vectors: Any) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({_NAMES[0]: np.ascontiguousarray(vectors)}, path, {"format": "pt"})
