# SPDX-License-Identifier: Apache-2.0
"""Tasks: what goes into a graph and what comes out. One file per Hub pipeline tag, `-` written `_`."""

import importlib
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


def module_of(task: str) -> ModuleType:
    """Return the module that defines a task, by its pipeline tag."""
    return importlib.import_module(f"{__name__}.{task.replace('-', '_')}")
