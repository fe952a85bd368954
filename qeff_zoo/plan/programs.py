# SPDX-License-Identifier: Apache-2.0
"""A package's programs as they are planned: what each one does, for which sizes, with which numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qeff_zoo.graph.numerics import Format
from qeff_zoo.recipe import Shape
from qeff_zoo.weights.storage import Storage

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.formats.encoded import Encoded


#: Roles of programs that read what a language model is given among its tokens.
READERS = ("vision", "tiles", "frames", "audio")


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
        stored: Whether those that it stores in fewer bits stay so; of others those do that are what `weights` says.
        named: By patterns of names, what other matrices become.
        flags: Of the target's compiler.
        fused: Programs whose results it reads, and which it computes itself.
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
    fused: tuple["ProgramPlan", ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether its calls are of tokens in a context, of which it retains states."""
        return any("ctx_len" in entry["symbols"] for entry in self.specializations)

    def specialized(self, graph: Any) -> list[Mapping[str, Any]]:
        """Return the specializations of a graph; of one that reads pictures or sounds, without sizes that it lacks.

        Args:
            graph: An `onnx_ir.Graph`, as it is compiled.
        """
        if self.role not in READERS and not self.fused:
            return [*self.specializations]
        known = {"batch_size", *(str(axis) for value in graph.inputs for axis in value.shape)}
        return [
            {
                **one,
                "symbols": {name: size for name, size in one["symbols"].items() if name in known},
            }
            for one in self.specializations
        ]

    def storage(self, encoded: "Mapping[str, Encoded]") -> Storage:
        """Return what the matrices of a checkpoint become.

        Args:
            encoded: What it stores in fewer bits.
        """
        stay = {
            name: one
            for name, one in encoded.items()
            if self.stored or (self.weights.by_rows and one.is_by_rows)
        }
        return Storage(self.weights, stay, self.named)
