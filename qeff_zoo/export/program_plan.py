# SPDX-License-Identifier: Apache-2.0
"""Planned program of a package, which the exporter traces and a target lowers: its role, sizes and number formats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qeff_zoo.graph.numerics import Format
from qeff_zoo.recipe import Shape
from qeff_zoo.weights.storage import Storage

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.encoded import Encoded


#: Roles of programs that encode multimodal inputs of a language model.
READERS = ("vision", "tiles", "frames", "audio")


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program of a package.

    Args:
        role: Role in the package, such as "decoder", "encoder" or "vision".
        task: Hub pipeline tag of its computation.
        shape: Sizes that it is specialized for.
        variant: Arguments of the task's `tracing`.
        specializations: Specializations, as in the manifest.
        weights: Storage format of the checkpoint's float matrices, or of all matrices.
        stored: Whether quantized matrices keep their stored format; otherwise only those already in the format
            `weights` do.
        named: Storage formats of other matrices, by patterns of their names.
        chosen: Storage formats of float matrices beside `weights`, by their names: those of the vocabulary, or all.
        flags: Flags of the target's compiler.
        fused: Programs whose results it consumes, and which it computes itself.
    """

    role: str
    task: str
    shape: Shape
    variant: Mapping[str, Any]
    specializations: Sequence[Mapping[str, Any]]
    weights: Format
    stored: bool = False
    named: tuple[tuple[str, Format], ...] = ()
    chosen: Mapping[str, Format] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    fused: tuple["ProgramPlan", ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether its calls take tokens in a context and retain states."""
        return any("ctx_len" in entry["symbols"] for entry in self.specializations)

    def specialized(self, graph: Any) -> list[Mapping[str, Any]]:
        """Return the specializations of a graph; those of an image or audio encoder omit sizes that the graph lacks.

        Args:
            graph: An `onnx_ir.Graph` before compilation.
        """
        if self.role not in READERS and not self.fused:
            return [*self.specializations]
        known = {"batch_size", *(str(axis) for value in graph.inputs for axis in value.shape)}
        return [
            {
                **specialization,
                "symbols": {
                    name: size for name, size in specialization["symbols"].items() if name in known
                },
            }
            for specialization in self.specializations
        ]

    def storage(self, encoded: "Mapping[str, Encoded]") -> Storage:
        """Return the storage formats of a checkpoint's matrices.

        Args:
            encoded: Quantized matrices of the checkpoint.
        """
        stay = {
            name: value
            for name, value in encoded.items()
            if self.stored or (self.weights.per_channel and value.is_per_channel)
        }
        return Storage(self.weights, stay, self.named, self.chosen)
