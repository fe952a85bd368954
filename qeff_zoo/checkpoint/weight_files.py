# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint that hold its weights, by name alone; a refusal where there are none.

In: the list of a checkpoint's files. Out: the safetensors file or the index of its shards, or a GGUF file. Pickle
is never read: to read one is to run whatever code it holds.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from qeff_zoo.checkpoint.files import Files, read_json, some
from qeff_zoo.checkpoint.gguf_index import shards_of
from qeff_zoo.errors import CheckpointError

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def weights_entry(config: Mapping[str, Any], files: Files) -> str:
    """Name the file of the weights, or the index of their shards, in transformers' own order.

    Args:
        config: config.json; its `transformers_weights` may name another file.
        files: Where to look.

    Raises:
        CheckpointError: There is none, with what is there instead.
    """
    named = config.get("transformers_weights")
    if named is not None:
        plain = isinstance(named, str) and named in files.names and "/" not in named
        if plain and named.endswith((".safetensors", ".safetensors.index.json")):
            return str(named)
        raise CheckpointError(
            f"config.json in {files} names the weights file {named!r}. Expected a safetensors "
            "file beside it, or an index of such files. Correct or remove `transformers_weights`."
        )
    for entry in (_WEIGHTS, _INDEX):
        if entry in files.names:
            return entry
    raise no_weights(files)


def gguf_models(files: Files) -> list[str]:
    """List the GGUF files of language models, of a split one the first; vision projectors are left out.

    Args:
        files: Where to look.
    """
    names = sorted(name for name in files.names if name.endswith(".gguf") and "/" not in name)
    return [name for name in names if "mmproj" not in name.lower() and shards_of(name)[0] == name]


def names_gguf(asked: str, name: str) -> bool:
    """Tell whether a GGUF file is meant by its name, or by its quantization.

    Args:
        asked: Such as "model-Q8_0.gguf" or "Q8_0".
        name: Name of a file.
    """
    if asked == name or asked.endswith(".gguf"):
        return asked == name
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", name)
    pattern = rf"(^|[-._]){re.escape(asked)}($|[-.])"
    return re.search(pattern, stem, re.IGNORECASE) is not None


def gguf_entry(files: Files, asked: str) -> str:
    """Name the GGUF file that is meant; a name that fits none is returned as it is.

    Args:
        files: Where to look.
        asked: Its name, or the name of its quantization.

    Raises:
        CheckpointError: No file, or several, have that quantization.
    """
    if asked in files.names or asked.endswith(".gguf"):
        return asked
    models = gguf_models(files)
    found = [name for name in models if names_gguf(asked, name)]
    if len(found) != 1:
        raise CheckpointError(
            f"{len(found) or 'No'} GGUF files of quantization {asked!r} in {files}: {some(found or models, 20)}. "
            "Expected the name of one file, or of a quantization that one file has. Name the file."
        )
    return found[0]


def only_gguf(files: Files) -> str | None:
    """Name the one GGUF file of a place that has no other weights; None for any other place.

    Args:
        files: The place.
    """
    other = any(name.endswith(".safetensors") for name in files.names)
    models = gguf_models(files)
    return models[0] if len(models) == 1 and not other else None


def no_weights(files: Files) -> CheckpointError:
    """Explain why a place without safetensors weights is refused.

    Args:
        files: The place.
    """
    names = sorted(name for name in files.names if "/" not in name)
    expected = f"Expected {_WEIGHTS!r} or {_INDEX!r}."
    if found := [name for name in names if name.endswith(".safetensors")]:
        kind = "those of an adapter" if "adapter_config.json" in names else "other safetensors"
        return CheckpointError(
            f"No weights of a whole model in {files}, only {kind}: {some(found)}. {expected} "
            "Give the base model, or a checkpoint with standard names."
        )
    if found := [name for name in names if name.endswith(".gguf")]:
        return CheckpointError(
            f"No safetensors in {files}, only GGUF: {some(found, 20)}. {expected} Name one of the GGUF files, or its "
            "quantization, with --gguf-file."
        )
    if found := [name for name in names if name.endswith(_PICKLES)]:
        return CheckpointError(
            f"Refused the weights in {files}, which are pickle: {some(found)}. Reading a pickle "
            f"can run code. {expected} Where you trust the files, convert with "
            "`AutoModel.from_pretrained(…).save_pretrained(…)` of transformers."
        )
    return CheckpointError(
        f"No weights in {files}, which has {some(names)}. {expected} Get the whole checkpoint "
        "from its source."
    )


def no_config(files: Files) -> CheckpointError:
    """Explain why a place without config.json is refused.

    Args:
        files: The place.
    """
    kinds = {PurePosixPath(name).suffix for name in files.names}
    if "adapter_config.json" in files.names or (".gguf" in kinds and ".safetensors" not in kinds):
        return no_weights(files)
    return CheckpointError(
        f"No config.json in {files}, which has {some(sorted(files.names))}. Expected a "
        "checkpoint as transformers writes it. Give the folder or the repository of one."
    )


def read_weight_map(path: Path) -> dict[str, str]:
    """Read an index of shards: file by tensor name.

    Args:
        path: A `*.safetensors.index.json`.

    Raises:
        CheckpointError: It is not such an index, or names files outside its folder.
    """
    weight_map = read_json(path).get("weight_map")
    shards = list(weight_map.values()) if isinstance(weight_map, dict) else []
    for shard in shards:
        parts = PurePosixPath(shard).parts if isinstance(shard, str) else ("..",)
        if ".." in parts or "/" in parts or "\\" in shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{str(path)!r} names the shard {shard!r}. Expected a safetensors file in the "
                "checkpoint's folder. Do not use this checkpoint unless you know why."
            )
    if not shards:
        raise CheckpointError(
            f"{str(path)!r} names no shard. Expected `weight_map` to give a file for every tensor. "
            "Get the file again from its source."
        )
    return dict(weight_map or {})
