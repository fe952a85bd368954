# SPDX-License-Identifier: Apache-2.0
"""A package's programs as they are planned: what each one does, for which sizes, with which numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.numerics import Format
from qeff_zoo.recipe import Shape


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program of a package.

    Args:
        role: What it is in the package: "decoder", "encoder", and later "vision_encoder", "draft", ….
        task: Hub pipeline tag of what it computes.
        shape: Sizes that it is specialized for.
        variant: What the task's `tracing` takes.
        specializations: As in the manifest.
        weights: What the matrices of a float checkpoint become.
        flags: Of the target's compiler.
    """

    role: str
    task: str
    shape: Shape
    variant: Mapping[str, Any]
    specializations: Sequence[Mapping[str, Any]]
    weights: Format
    flags: Mapping[str, Any] = field(default_factory=dict)
