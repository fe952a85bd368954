# SPDX-License-Identifier: Apache-2.0
"""Weight files of a checkpoint, by name alone, and the refusal of checkpoints without any.

Input: the list of a checkpoint's files. Output: the safetensors file or the index of its shards, or a GGUF file. Pickle
    is never read, since it can execute code.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from qeff_zoo.checkpoint.files import Files, LocalFiles, some
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.disk.user_paths import similar_path
from qeff_zoo.errors import CheckpointError, ZooError
from qeff_zoo.registry import no_recipe, reason_of

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
#: File of peft beside an adapter's weights.
ADAPTER = "adapter_config.json"
#: File of sentence-transformers that lists the modules of a model.
MODULES = "modules.json"
#: Files of older quantizers, and the tensors that only quantized checkpoints have.
_BESIDE = ("quantize_config.json", "quant_config.json")
_QUANTIZED = frozenset(
    [
        "qweight",
        "weight_packed",
        "SCB",
        "absmax",
        "W_q",
        "weight_scale",
        "weight_scale_inv",
        "weight_scale_2",
    ]
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def weights_entry(config: Mapping[str, Any], files: Files) -> str:
    """Return the name of the weight file, or of the index of shards, in transformers' own order.

    Args:
        config: Content of config.json; its `transformers_weights` may name another file.
        files: Files to search.

    Raises:
        CheckpointError: There is none; the message lists other files.
        UnsupportedModelError: There is none, and weights would not help: no recipe computes the model.
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
    raise _unsupported(config) or no_weights(files)


def _unsupported(config: Mapping[str, Any]) -> ZooError | None:
    """Return the error of a model that no recipe computes for a known reason; None for others."""
    kind = str(config.get("model_type"))
    return no_recipe(kind) if reason_of(kind) else None


def gguf_models(files: Files) -> list[str]:
    """Return the GGUF files of language models, the first of a split one; vision projectors are omitted.

    Args:
        files: Files to search.
    """
    names = sorted(name for name in files.names if name.endswith(".gguf") and "/" not in name)
    return [name for name in names if "mmproj" not in name.lower() and shards_of(name)[0] == name]


def names_gguf(requested: str, name: str) -> bool:
    """Return whether a name selects a GGUF file, by file name or by quantization.

    Args:
        requested: Name such as "model-Q8_0.gguf" or "Q8_0".
        name: Name of a file.
    """
    if requested == name or requested.endswith(".gguf"):
        return requested == name
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", name)
    pattern = rf"(^|[-._]){re.escape(requested)}($|[-.])"
    return re.search(pattern, stem, re.IGNORECASE) is not None


def gguf_entry(files: Files, requested: str) -> str:
    """Return the name of the requested GGUF file; an unknown name is returned unchanged.

    Args:
        files: Files to search.
        requested: File name, or name of its quantization.

    Raises:
        CheckpointError: No file, or several, have that quantization.
    """
    if requested in files.names or requested.endswith(".gguf"):
        return requested
    models = gguf_models(files)
    matching = [name for name in models if names_gguf(requested, name)]
    if len(matching) != 1:
        raise CheckpointError(
            f"{len(matching) or 'No'} GGUF files of quantization {requested!r} in {files}: "
            f"{some(matching or models, 20)}. Expected the name of a file, or of a quantization that one file has. "
            "Name the file."
        )
    return matching[0]


def only_gguf(files: Files) -> str | None:
    """Return the only GGUF file of a checkpoint without other weights; None for any other checkpoint.

    Args:
        files: Files of the checkpoint.
    """
    other = any(name.endswith(".safetensors") for name in files.names)
    models = gguf_models(files)
    return models[0] if len(models) == 1 and not other else None


def has_weights(files: Files, folders: Collection[str] = ()) -> bool:
    """Return whether a checkpoint has a file of weights of any kind, adapters and pickles too.

    Args:
        files: Files of the checkpoint.
        folders: Folders of the components of a pipeline, which are searched as well.
    """
    kinds = (".safetensors", ".gguf", *_PICKLES, _INDEX, ADAPTER)
    prefixes = {"", *folders}
    return any(name.endswith(kinds) for name in files.names if name.rpartition("/")[0] in prefixes)


def no_weights(files: Files) -> CheckpointError:
    """Return the error of a checkpoint without safetensors weights.

    Args:
        files: Files of the checkpoint.
    """
    names = sorted(name for name in files.names if "/" not in name)
    if ADAPTER in names:
        return _is_adapter(files)
    expected = f"Expected {_WEIGHTS!r} or {_INDEX!r}."
    if weights := [name for name in names if name.endswith(".safetensors")]:
        return CheckpointError(
            f"No weights of a whole model in {files}, only other safetensors: {some(weights)}. {expected} "
            "Use a checkpoint with standard names."
        )
    if weights := [name for name in names if name.endswith(".gguf")]:
        return CheckpointError(
            f"No safetensors in {files}, only GGUF: {some(weights, 20)}. {expected} Name one of the GGUF files, or its "
            "quantization, with --gguf-file."
        )
    if weights := [name for name in names if name.endswith(_PICKLES)]:
        return CheckpointError(
            f"Refused the weights in {files}, which are pickle: {some(weights)}. Reading a pickle "
            f"can run code. {expected} Where you trust the files, convert with "
            "`AutoModel.from_pretrained(…).save_pretrained(…)` of transformers."
        )
    return CheckpointError(
        f"No weights in {files}, which has {some(names)}. {expected} Get the whole checkpoint from its source; "
        "`qeff-zoo plan` and `qeff-zoo export --graph-only` require config.json alone."
    )


def _is_adapter(files: Files) -> CheckpointError:
    path = files.folder / ADAPTER
    base = read_json(path).get("base_model_name_or_path") if path.is_file() else None
    if MODULES in files.names:  # the base has other modules, or none
        return CheckpointError(
            f"{files} has {ADAPTER} and {MODULES}: it is an adapter of {repr(base) if base else 'a model'} with "
            f"modules of sentence-transformers, no whole model. Expected a model with these modules. Copy {MODULES} "
            "and the files that it lists into a copy of that model, and run `qeff-zoo build COPY --adapter ADAPTER`."
        )
    return CheckpointError(
        f"{files} has {ADAPTER}: it is an adapter of {repr(base) if base else 'a model'}, no whole model. Expected the "
        f"model, with the adapter beside it. Run `qeff-zoo build {base or 'MODEL'} --adapter ADAPTER`."
    )


def stacked_by_mlx(name: str, tensors: Iterable[str]) -> CheckpointError | None:
    """Return the error of a float checkpoint whose experts mlx-lm stacked; None for any other.

    Args:
        name: Name of the checkpoint.
        tensors: Names of its tensors.
    """
    stacked = next((tensor for tensor in tensors if ".switch_mlp." in tensor), None)
    if stacked is None:
        return None
    return CheckpointError(
        f"{name!r} is a float checkpoint of mlx-lm, as its tensor {stacked!r} shows. Expected transformers' "
        "arrangement, or a checkpoint that mlx quantized. Use the checkpoint that it was converted from."
    )


def undescribed(name: str, files: Files, tensors: Iterable[str]) -> CheckpointError | None:
    """Return the error of quantized weights without a `quantization_config`; None for unquantized weights.

    Args:
        name: Name of the checkpoint.
        files: Files of the checkpoint.
        tensors: Names of its tensors.
    """
    quantized = next(
        (tensor for tensor in tensors if tensor.rpartition(".")[2] in _QUANTIZED), None
    )
    if quantized is None:
        return None
    beside = next((one for one in _BESIDE if one in files.names), None)
    path = files.folder / (beside or "")
    sizes = f": {dict(_sizes_of(read_json(path)))}" if beside and path.is_file() else ""
    there = (
        f"It has {beside}{sizes}, which transformers does not read"
        if beside
        else "Nothing beside it has one"
    )
    return CheckpointError(
        f"{name!r} is quantized, as its tensor {quantized!r} shows, but its config.json has no `quantization_config`. "
        f"{there}. Expected the method there, such as {{'quant_method': 'gptq', 'bits': 4, 'group_size': 128}}. Add "
        "it to config.json, or get a newer revision of the checkpoint."
    )


def _sizes_of(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a quantizer's own config that name its method and sizes."""
    for name in (
        "quant_method",
        "bits",
        "w_bit",
        "group_size",
        "q_group_size",
        "desc_act",
        "version",
    ):
        if name in config:
            yield name, config[name]


def no_path(path: Path) -> CheckpointError:
    """Return the error of a path that does not exist."""
    return CheckpointError(
        f"No file or folder {str(path)!r}. Expected a checkpoint's folder, a config.json, or a Hub id 'org/name'."
        f"{similar_path(str(path))} Check the path."
    )


def no_folder(path: Path) -> CheckpointError:
    """Return the error of a file in place of a checkpoint's folder."""
    if path.suffix in _PICKLES:
        return no_weights(LocalFiles(path.parent, frozenset([path.name])))
    beside = "has config.json" if (path.parent / "config.json").is_file() else "has no config.json"
    return CheckpointError(
        f"{str(path)!r} is a single file. Expected a checkpoint's folder, a config.json, a GGUF file, or a Hub id "
        f"'org/name'. Give the folder of the checkpoint: {str(path.parent)!r} {beside}."
    )


def no_files(files: Files, missing: Sequence[str], count: int) -> CheckpointError:
    """Return the error of missing weight files.

    Args:
        files: Files of the checkpoint.
        missing: Their relative paths.
        count: Number of files that the checkpoint names.
    """
    return CheckpointError(
        f"{len(missing)} of {count} weight files are missing in {files}: {some(missing)}. Expected every shard that "
        "the index names, and the weights of every dense layer in modules.json. Get the missing files."
    )


def only_config(path: Path) -> ZooError:
    """Return the error of a configuration without weights."""
    return _unsupported(read_json(path)) or CheckpointError(
        f"{str(path)!r} is a configuration alone. Expected weights too. Give the folder of the checkpoint; "
        "`qeff-zoo plan` and `qeff-zoo export --graph-only` require config.json alone."
    )


def no_config(files: Files) -> CheckpointError:
    """Return the error of a checkpoint without config.json.

    Args:
        files: Files of the checkpoint.
    """
    kinds = {PurePosixPath(name).suffix for name in files.names}
    if ADAPTER in files.names or (".gguf" in kinds and ".safetensors" not in kinds):
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
        CheckpointError: The file is not such an index, or names files outside its folder.
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


def shards_of(name: str) -> tuple[str, ...]:
    """Return the names of all files of a split checkpoint, by one of them; that name alone without a split.

    Args:
        name: Name such as "model-00001-of-00003.gguf".
    """
    match = _SHARD.fullmatch(name)
    if not match or not 1 <= int(match["number"]) <= int(match["count"]) <= 1000:
        return (name,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))
