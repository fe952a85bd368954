# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers' files beside a checkpoint: pooling, dense layers and normalization."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import UnsupportedModelError

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Torch classes of a dense layer's activation.
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
_LISTED, _DENSE_WEIGHTS = "modules.json", "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A layer after the pooling.

    Args:
        folder: Folder of its config and weights, below the checkpoint's.
        in_features: Number of inputs.
        out_features: Number of outputs.
        bias: Whether it has a bias.
        activation: Activation, one of `ACTIVATIONS`.
    """

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str

    @property
    def tensors(self) -> dict[str, str]:
        """Names of its checkpoint tensors, by parameter."""
        names = ["weight", *(["bias"] if self.bias else [])]
        return {name: f"{self.folder}/linear.{name}" for name in names}


@dataclass(frozen=True)
class Pooling:
    """Pooling of a sentence-transformers model.

    Args:
        pooling: Pooling method: "mean", "cls", "max" or "lasttoken".
        normalize: Whether a normalization follows.
        dense: Layers between the two.
    """

    pooling: str
    normalize: bool
    dense: tuple[Dense, ...] = ()


def dense_files(companions: Mapping[str, Path]) -> dict[str, str]:
    """Return the weight files of dense layers, which transformers does not read: folder -> relative path.

    Args:
        companions: Files beside the checkpoint, by relative path.
    """
    if _LISTED not in companions:
        return {}
    folders = [
        str(module.get("path")) for module in _modules(companions) if _kind(module) == "Dense"
    ]
    return {
        folder: f"{folder}/{_DENSE_WEIGHTS}"
        for folder in folders
        if f"{folder}/config.json" in companions  # so that it cannot lie anywhere else
    }


def read_pooling(companions: Mapping[str, Path]) -> Pooling | None:
    """Read modules.json and the configs that it lists.

    Args:
        companions: Files beside the checkpoint, by relative path.

    Returns:
        Their content, or None for a checkpoint without them.

    Raises:
        UnsupportedModelError: A module or a pooling is unsupported.
    """
    if _LISTED not in companions:
        return None
    modules = _modules(companions)
    kinds = [_kind(module) for module in modules]
    rest = kinds[2:-1] if kinds[-1] == "Normalize" else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(rest) - {"Dense"}:
        raise UnsupportedModelError(
            f"modules.json lists {kinds}, expected Transformer, Pooling, any number of Dense, and perhaps Normalize. "
            f"Other modules are not computed; remove modules.json to build the encoder alone."
        )
    name, config = _config(companions, modules[1])
    modes = [
        key for key, value in config.items() if key.startswith("pooling_mode_") and value is True
    ]
    if isinstance(config.get("pooling_mode"), str):  # the newer form of the file
        named = {mode: key for key, mode in _MODES.items()}
        modes = [named.get(config["pooling_mode"], config["pooling_mode"])]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedModelError(
            f"{name} asks for pooling {modes or 'none'}, expected one of {', '.join(_MODES)}. Other poolings are not "
            f"computed; give --pooling with a checkpoint that has no modules.json."
        )
    dense = tuple(_read_dense(companions, module) for module in modules if _kind(module) == "Dense")
    return Pooling(_MODES[modes[0]], "Normalize" in kinds, dense)


def dense_bindings(companions: Mapping[str, Path]) -> dict[str, str]:
    """Return the checkpoint tensor of every parameter of the dense layers, by its name in the model."""
    found = read_pooling(companions)
    return {
        f"dense.{number}.{name}": tensor
        for number, layer in enumerate(found.dense if found else ())
        for name, tensor in layer.tensors.items()
    }


def _read_dense(companions: Mapping[str, Path], module: Mapping[str, Any]) -> Dense:
    name, config = _config(companions, module)
    module_of, _, activation = str(config.get("activation_function")).rpartition(".")
    sizes = [config.get(size) for size in ("in_features", "out_features")]
    reads = {config.get(f"module_{end}_name") for end in ("input", "output")}
    if (
        activation not in ACTIVATIONS
        or not module_of.startswith("torch.nn")
        or not all(isinstance(size, int) and size > 0 for size in sizes)
        or reads - {None, "sentence_embedding"}
    ):
        raise UnsupportedModelError(
            f"{name} describes the dense layer {config}, expected `in_features`, `out_features` and of torch.nn "
            f"one of {', '.join(ACTIVATIONS)} for its `activation_function`, on the sentence embedding. Other "
            f"layers are not computed; remove modules.json to build the encoder alone."
        )
    return Dense(
        folder=str(module["path"]),
        in_features=int(config["in_features"]),
        out_features=int(config["out_features"]),
        bias=bool(config.get("bias", True)),
        activation=activation,
    )


def _modules(companions: Mapping[str, Path]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(read_text(companions[_LISTED]))
    return listed


def _kind(module: Mapping[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def _config(
    companions: Mapping[str, Path], module: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the name and the content of a module's config."""
    name = str(PurePosixPath(module["path"]) / "config.json")
    known = name in companions
    return name, json.loads(read_text(companions[name])) if known else {}
