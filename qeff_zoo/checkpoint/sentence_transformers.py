# SPDX-License-Identifier: Apache-2.0
"""What sentence-transformers' files beside a checkpoint say: how token states become one embedding."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from qeff_zoo.errors import UnsupportedModelError

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """How a sentence-transformers model reduces token states.

    Args:
        pooling: "mean", "cls", "max" or "lasttoken".
        normalize: Whether a normalization follows.
    """

    pooling: str
    normalize: bool


def read_pooling(companions: Mapping[str, Path]) -> Pooling | None:
    """Read modules.json and the pooling config it names.

    Args:
        companions: Files beside the checkpoint, by relative path.

    Returns:
        What they say, or None for a checkpoint without them.

    Raises:
        UnsupportedModelError: They ask for a module or a pooling that is not computed here.
    """
    if "modules.json" not in companions:
        return None
    modules = json.loads(companions["modules.json"].read_text(encoding="utf-8"))
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedModelError(
            f"modules.json lists {kinds}, expected Transformer, Pooling and perhaps Normalize. Other modules, such as "
            f"Dense, are not computed; remove modules.json to build the encoder alone."
        )
    name = str(PurePosixPath(modules[1]["path"]) / "config.json")
    config = json.loads(companions[name].read_text(encoding="utf-8")) if name in companions else {}
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
    return Pooling(_MODES[modes[0]], "Normalize" in kinds)
