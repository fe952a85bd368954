# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of diffusers' pipelines: model_index.json, and a folder for each component.

Input: the files of a checkpoint. Output: one configuration with those of all components, and the file or index of each
    component's weights. Names of tensors begin with the folder: `unet/conv_in.weight`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.files import COMPONENTS, MODEL_INDEX, Files, require_possible, some
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.errors import CheckpointError
from qeff_zoo.registry import find_recipe

_CONFIGS = ("config.json", "scheduler_config.json")
#: Files of a component's weights in the order of diffusers and transformers.
_WEIGHTS = (
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_pipeline(names: Iterable[str]) -> bool:
    """Return whether files are those of a pipeline, and not of a model with a config.json.

    Args:
        names: Relative paths.
    """
    found = {*names} & {MODEL_INDEX, "config.json"}
    return found == {MODEL_INDEX}


def read_pipeline(companions: Mapping[str, Path]) -> dict[str, Any]:
    """Read the configuration of a pipeline: model_index.json, with those of its components in `components`.

    Args:
        companions: Small files of the checkpoint, by relative path.

    Raises:
        CheckpointError: A file is damaged or missing, or the pipeline's class is code of the checkpoint.
    """
    path = companions[MODEL_INDEX]
    index = read_json(path)
    name = index.get("_class_name")
    if not isinstance(name, str) or not name.isidentifier():
        raise CheckpointError(
            f"{str(path)!r} has the _class_name {name!r:.200}; expected the name of one of diffusers' pipelines, such "
            "as 'StableDiffusionPipeline': code of a checkpoint is never run. Use a checkpoint of such a pipeline."
        )
    components = {}
    for folder, entry in sorted(index.items()):
        if not isinstance(entry, list):  # a setting of the pipeline
            continue
        if not (len(entry) == 2 and all(isinstance(one, str | None) for one in entry)):
            raise CheckpointError(
                f"{str(path)!r} has the component {folder}: {entry!r:.200}; expected a library and a class, such as "
                "['diffusers', 'AutoencoderKL'], or [null, null]. Correct it."
            )
        if entry[1] is not None:
            components[folder] = _component(folder, entry[0], entry[1], companions)
    return {**index, "model_type": name, "architectures": [name], COMPONENTS: components}


def _component(
    folder: str, library: str | None, kind: str, companions: Mapping[str, Path]
) -> dict[str, Any]:
    """Return the configuration of a component, with its library and class; of one without a known file these alone."""
    found = (f"{folder}/{name}" for name in _CONFIGS if f"{folder}/{name}" in companions)
    name = next(found, None)
    config = read_json(companions[name]) if name else {}
    if name:
        require_possible(companions[name], config)
    return {**config, "_library": library, "_class_name": kind}


def folders_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of the components whose weights a package has; empty for a model without components.

    Args:
        config: Configuration of a checkpoint.

    Raises:
        UnsupportedModelError: No recipe runs the pipeline.
    """
    if COMPONENTS not in config:
        return ()
    pipeline = find_recipe(config["model_type"]).pipeline
    if pipeline is None:
        return ()
    absent = {*pipeline.optional} - config[COMPONENTS].keys()
    return tuple(folder for folder in pipeline.components if folder not in absent)


def weight_entries(config: Mapping[str, Any], files: Files) -> dict[str, str]:
    """Return the weight file, or the index of its shards, of each component, by folder.

    Args:
        config: Configuration of the pipeline.
        files: Files to search.

    Raises:
        CheckpointError: A component has none; the message lists other files.
    """
    return {folder: _entry(folder, files) for folder in folders_of(config)}


def _entry(folder: str, files: Files) -> str:
    for name in _WEIGHTS:
        if f"{folder}/{name}" in files.names:
            return f"{folder}/{name}"
    inside = sorted(name for name in files.names if name.startswith(f"{folder}/"))
    expected = f"Expected {_WEIGHTS[0]!r} or {_WEIGHTS[2]!r} there, or an index of shards."
    if found := [name for name in inside if name.endswith(".safetensors")]:
        raise CheckpointError(
            f"No weights of the component {folder!r} in {files}, only other safetensors: {some(found)}. {expected} Use "
            "a revision of the checkpoint with standard names, or save the pipeline with `save_pretrained(…)`."
        )
    if found := [name for name in inside if name.endswith(_PICKLES)]:
        raise CheckpointError(
            f"Refused the weights of the component {folder!r} in {files}, which are pickle: {some(found)}. Reading a "
            f"pickle can run code. {expected} Where you trust the files, convert with "
            "`DiffusionPipeline.from_pretrained(…).save_pretrained(…)` of diffusers."
        )
    raise CheckpointError(
        f"No weights of the component {folder!r} in {files}, which has {some(inside)}. {expected} Get the whole "
        "checkpoint from its source; `qeff-zoo plan` and `qeff-zoo export --graph-only` require the configurations "
        "alone."
    )


def only(config: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """Return the configuration of a pipeline with a single component; that of another model unchanged.

    Args:
        config: Configuration of a checkpoint.
        folder: Folder of the component; empty for a model without components.
    """
    if not folder:
        return config
    return {**config, COMPONENTS: {folder: config[COMPONENTS][folder]}}
