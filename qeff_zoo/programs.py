# SPDX-License-Identifier: Apache-2.0
"""A package's programs as they are planned: what each one does, for which sizes, with which numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qeff_zoo.numerics import Format
from qeff_zoo.recipe import Shape
from qeff_zoo.weights.storage import Storage

if TYPE_CHECKING:
    from qeff_zoo.formats.encoded import Encoded


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program of a package.

    Args:
        role: What it is in the package: "decoder", "encoder", and later "vision_encoder", "draft", ….
        task: Hub pipeline tag of what it computes.
        shape: Sizes that it is specialized for.
        variant: What the task's `tracing` takes.
        specializations: As in the manifest.
        weights: What matrices become that the checkpoint has in floats, or all.
        stored: Whether those that it stores in fewer bits stay so.
        named: By patterns of names, what other matrices become.
        flags: Of the target's compiler.
    """

    role: str
    task: str
    shape: Shape
    variant: Mapping[str, Any]
    specializations: Sequence[Mapping[str, Any]]
    weights: Format
    stored: bool = False
    named: tuple[tuple[str, Format], ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def storage(self, encoded: "Mapping[str, Encoded]") -> Storage:
        """Return what the matrices of a checkpoint become.

        Args:
            encoded: What it stores in fewer bits.
        """
        return Storage(self.weights, encoded if self.stored else {}, self.named)
