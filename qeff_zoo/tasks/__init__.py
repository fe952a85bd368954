# SPDX-License-Identifier: Apache-2.0
"""Tasks: what goes into a graph and what comes out. One file per Hub pipeline tag, `-` written `_`."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """All that `torch.export` needs of a task.

    Args:
        module: Takes the inputs by name, returns a flat tuple.
        inputs: Example inputs, small and on the CPU.
        dynamic_shapes: As `torch.export` takes them, with named dimensions shared between inputs.
        input_names: Of the flattened inputs.
        output_names: Of the outputs.
    """

    module: Any
    inputs: dict[str, Any]
    dynamic_shapes: dict[str, Any]
    input_names: list[str]
    output_names: list[str]


#: Configs' names for the number of positions that a model has a table or a mask for.
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions that a config gives its model, or None if it names none.

    Args:
        config: Raw config.json, or a text model's part of it.
    """
    return next(
        (int(config[name]) for name in POSITIONS if isinstance(config.get(name), int)), None
    )


def module_of(task: str) -> ModuleType:
    """Return the module that defines a task, by its pipeline tag."""
    return importlib.import_module(f"{__name__}.{task.replace('-', '_')}")
