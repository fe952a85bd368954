# SPDX-License-Identifier: Apache-2.0
"""Rounding of float matrices, of a build and of its prediction: formats of single matrices, importance, smoothing."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qeff_zoo.checkpoint.expressions import TensorSource, is_computed, sources_of
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.numerics import BLOCK_SIZES, Format, format_of
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.targets.base import Target
from qeff_zoo.weights.bound_graph import BoundGraph
from qeff_zoo.weights.layout import FileLayout

if TYPE_CHECKING:
    from qeff_zoo.weights.importance import Measured
    from qeff_zoo.weights.mixture import Matrices
    from qeff_zoo.weights.smoothing import Smoothing


def matrices_of(
    target: Target,
    programs: Sequence[ProgramPlan],
    graphs: Sequence[BoundGraph],
    checkpoint: Checkpoint,
    block_size: int | None = None,
) -> "Matrices":
    """Return the matrices of a mixture of formats.

    Args:
        target: Target, whose draft of each program with int4 alone shows the matrices.
        programs: Programs of a package.
        graphs: Their graphs.
        checkpoint: Checkpoint with local weights.
        block_size: Size of all blocks; None if each matrix has its own.
    """
    from qeff_zoo.weights import mixture

    lowered = [
        target.lower(replace(graph, model=graph.model.clone()), program)
        for program, graph in zip(programs, graphs, strict=True)
    ]
    drafts = [
        mixture.Draft(graph=one.model.graph, slots=one.slots, matrices=one.numerics.matrices)
        for one in lowered
    ]
    named = programs[0].storage({})
    return mixture.matrices_of(
        drafts,
        {name: one for graph in graphs for name, one in graph.bindings.items()},
        checkpoint.tensors,
        lambda name: named.pattern_of(name) is not None,
        [block_size] if block_size else BLOCK_SIZES,
    )


def with_formats(
    programs: Iterable[ProgramPlan], formats: Mapping[str, Format]
) -> list[ProgramPlan]:
    """Return programs with the formats of single matrices beside int4, or beside per-channel int8."""
    return [
        replace(one, chosen=formats) if one.weights.fitted or one.weights.per_channel else one
        for one in programs
    ]


def fitted(layout: FileLayout) -> list[str]:
    """Return the names of the slots of a data file that are rounded by the importance of columns."""
    return [name for name, slot in layout.slots.items() if slot.format.fitted]


def measure(
    checkpoint: Checkpoint, task: str, tokenizer: Tokenizer | None, *, costs: bool = False
) -> "Measured":
    """Measure how much the columns of a decoder's matrices matter; embeddings of texts are no better for it.

    Args:
        checkpoint: Checkpoint with local weights.
        task: Task of the package.
        tokenizer: Tokenizer of the model; None if all ids are ordinary tokens.
        costs: Whether to measure costs of errors, too.

    Returns:
        Nothing for a model that is no decoder, or, with a warning, whose layers do not run one by one.
    """
    from qeff_zoo.weights.importance import Measured

    if task != TEXT_GENERATION:
        return Measured()
    from qeff_zoo.export import importance

    try:
        return importance.measure(checkpoint, task, tokenizer, costs=costs)
    except UnsupportedModelError as error:
        _warn(checkpoint, "int4", "all columns of a matrix count alike", error)
    return Measured()


def _warn(checkpoint: Checkpoint, weights: str, effect: str, error: UnsupportedModelError) -> None:
    """Warn of a format that is less exact without measured inputs."""
    reason = str(error).split(". ")[0].removesuffix(".")  # without its advice
    warnings.warn(
        f"{weights} of {checkpoint.name!r} is less exact than it could be: {effect}, since inputs of its layers cannot "
        f"be measured: {reason}. Use --weights int8 if that is too inexact.",
        stacklevel=6,
    )


@dataclass(frozen=True, kw_only=True)
class Evened:
    """Preparation of a decoder's matrices for per-token int8 activations.

    Args:
        smoothing: Smoothing by parameter.
        sources: Tensor of the checkpoint for each smoothed parameter.
        formats: Formats of matrices whose inputs stay uneven, by name.
    """

    smoothing: "Smoothing"
    sources: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, Format] = field(default_factory=dict)

    def read(self, checkpoint: Checkpoint) -> TensorSource:
        """Return the tensors of a checkpoint after smoothing."""
        from qeff_zoo.weights.smoothing import Smoothed

        if not self.smoothing:
            return checkpoint
        return Smoothed(checkpoint, self.smoothing.of_tensors(self.sources))


def even_out(
    checkpoint: Checkpoint,
    programs: Sequence[ProgramPlan],
    graphs: Sequence[BoundGraph],
    tokenizer: Tokenizer | None,
) -> Evened:
    """Smooth the inputs of a decoder's per-channel matrices, and choose blocks where they stay uneven.

    Args:
        checkpoint: Checkpoint with local weights.
        programs: Programs of the package.
        graphs: Their graphs.
        tokenizer: Tokenizer of the model; None if all ids are ordinary tokens.

    Returns:
        Nothing for other formats, a model that is no decoder, one with adapter slots, or, with a warning, one whose
        layers do not run one by one.
    """
    from qeff_zoo.export.smoothing import measure as measure_smoothing
    from qeff_zoo.weights.smoothing import Smoothing

    nothing = Evened(smoothing=Smoothing())
    decoders = [one for one in programs if one.weights.per_channel and one.task == TEXT_GENERATION]
    # Adapters multiply the same inputs.
    if not decoders or any("max_loras" in one.variant for one in programs):
        return nothing
    kept = decoders[0].storage(checkpoint.encoded).encoded
    bindings = [one for graph in graphs for one in graph.bindings.values()]
    computed = {name for one in bindings if is_computed(one) for name in sources_of(one)}
    try:
        found = measure_smoothing(
            checkpoint,
            TEXT_GENERATION,
            tokenizer,
            lambda name: name not in kept and name not in computed,
        )
    except UnsupportedModelError as error:
        _warn(checkpoint, "w8a8", "all columns of activations share a scale", error)
        return nothing
    int8 = format_of("int8")
    whole = {
        name
        for graph in graphs
        for name, value in graph.model.graph.initializers.items()
        if len(value.shape) > 1 and value.shape[-1] % int8.block == 0
    }
    formats = {name: int8 for name in found.uneven if name in whole}
    return Evened(smoothing=found.smoothing, sources=found.sources, formats=formats)
