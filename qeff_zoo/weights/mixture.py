# SPDX-License-Identifier: Apache-2.0
"""Choice of the format of each matrix, so that a package has so many bits a weight and loses least by rounding.

In: programs that were lowered with one format for all, and costs of errors. Out: a format for each weight's name.
What a matrix costs in a format is estimated from some of its rows. The sum of all is least: the choice is the solution
of a knapsack problem, so that more bits never cost more.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from qeff_zoo.checkpoint import expressions
from qeff_zoo.checkpoint.expressions import TensorSource, shape_of, sources_of
from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import PlanError
from qeff_zoo.graph.external_data import SLOT
from qeff_zoo.graph.numerics import BLOCK_SIZES, MIXED, Format, RoundedMatrix, format_of
from qeff_zoo.weights.importance import Measured, of_matrix
from qeff_zoo.weights.layout import Slot, nbytes_of, unstorable
from qeff_zoo.weights.quantization import Array, round_trip

#: Adjacent rows, and how many such runs of a matrix, or of the sampled ones of a stack, errors are estimated from.
_RUN, _RUNS, _MATRICES = 8, 16, 4
#: Nats that a relative squared error costs where it was not measured, of a matrix of a layer (the median of SmolLM2's)
#: and of one whose rows are looked up.
_TYPICAL, _LOOKED_UP = 0.1, 1.0
#: Number of matrices that are named as costly, and further bits a weight whose cost is estimated for comparison.
_COSTLY, _MORE = 4, (1.0, 2.0)
#: Steps into which the bits between the smallest and the largest choice are divided.
_STEPS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Program that was lowered with one format for all matrices of floats.

    Args:
        graph: An `onnx_ir.Graph`.
        slots: Contents of its data file.
        matrices: Rounded matrices.
    """

    graph: Any
    slots: Sequence[Slot]
    matrices: Sequence[RoundedMatrix]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Matrices that share a format: rows of one weight, tied weights, and all that one operator reads.

    Args:
        slots: Each matrix, or stack of them, as a slot of its own.
        names: Names of their weights in graphs.
        formats: Formats that fit all of them.
        looked_up: Names of slots of which rows are looked up.
    """

    slots: tuple[Slot, ...]
    names: tuple[str, ...]
    formats: tuple[Format, ...]
    looked_up: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """All matrices of a package that are stored in integers.

    Args:
        groups: Matrices whose format is to be chosen.
        fixed: Other matrices, whose format is known.
        tensors: The checkpoint's.
    """

    groups: Sequence[Group]
    fixed: Sequence[Slot]
    tensors: Any

    @property
    def values(self) -> int:
        """Number of their values."""
        slots = [*self.fixed, *(slot for group in self.groups for slot in group.slots)]
        return sum(math.prod(shape_of(slot.expression, self.tensors)) for slot in slots)

    @property
    def bits_of_fixed(self) -> int:
        """Bits of those whose format is not to be chosen."""
        return 8 * sum(nbytes_of(slot, self.tensors) for slot in self.fixed)

    def bits(self, group: Group) -> dict[Format, int]:
        """Return the bits of a group in each format, with scales and zero points."""
        return {
            format: 8
            * sum(nbytes_of(replace(slot, format=format), self.tensors) for slot in group.slots)
            for format in group.formats
        }

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and most bits a weight that a mixture can have."""
        every = [self.bits(group).values() for group in self.groups]
        least, most = (
            (self.bits_of_fixed + sum(map(end, every))) / self.values for end in (min, max)
        )
        return least, most

    def nearest(self, bits: float) -> float:
        """Return the bits a weight that a mixture can have and that are nearest to a number."""
        if not self.groups:
            return bits
        least, most = self.bounds
        return min(max(bits, least), most)

    def require_within(self, bits: float) -> None:
        """Make sure that a mixture can have so many bits a weight.

        Raises:
            PlanError: It has more or fewer.
        """
        if not self.groups:
            raise PlanError([f"--bits is {bits:g}, but no matrix becomes int4. Leave it out."])
        least, most = self.bounds
        if not least <= bits <= most:
            lowest, highest = math.ceil(least * 1000) / 1000, math.floor(most * 1000) / 1000
            raise PlanError(
                [
                    f"--bits is {bits:g}, expected {lowest:g} to {highest:g}: what the matrices of this model have in "
                    f"{' and '.join(MIXED)}, scales and zero points included. Choose a number between."
                ]
            )


def matrices_of(
    programs: Sequence[Draft],
    bindings: Mapping[str, Expression],
    tensors: Any,
    is_pinned: Callable[[str], bool],
    blocks: Sequence[int] = BLOCK_SIZES,
) -> Matrices:
    """Group the matrices of programs whose matrices of floats became int4.

    Args:
        programs: Lowered programs.
        bindings: Expressions of the weights of their portable graphs.
        tensors: The checkpoint's.
        is_pinned: Predicate: whether the format of a matrix was chosen otherwise, by its name.
        blocks: Numbers of columns that may share a scale.
    """
    slots = {slot.name: slot for one in programs for slot in _parts(one, tensors)}
    chosen = {
        name: slot
        for name, slot in slots.items()
        if slot.format.fitted
        and not (slot.kept or is_pinned(name))
        and _weight(name, bindings) in bindings
    }
    labels = {name: str(bindings[_weight(name, bindings)]) for name in chosen}
    for node in (node for one in programs for node in one.graph):
        read = {value.metadata_props.get(SLOT, "") for value in node.inputs if value is not None}
        together = {labels[name] for name in read & labels.keys()}
        if len(together) > 1:
            first = min(together)
            labels = {name: first if one in together else one for name, one in labels.items()}
    names: dict[str, list[str]] = {}
    for name, label in labels.items():
        names.setdefault(label, []).append(name)
    looked_up = frozenset(
        matrix.name for one in programs for matrix in one.matrices if matrix.gathered
    )
    groups = []
    for members in names.values():
        each = tuple(chosen[name] for name in members)
        values = {str(bindings[_weight(name, bindings)]) for name in members}
        tied = tuple(name for name, value in bindings.items() if str(value) in values)
        columns = [shape_of(slot.expression, tensors)[-1] for slot in each]
        groups.append(
            Group(
                slots=each,
                names=tied,
                formats=_formats(columns, blocks),
                looked_up=looked_up & {*members},
            )
        )
    fixed = [slot for name, slot in slots.items() if name not in chosen]
    return Matrices(groups=groups, fixed=fixed, tensors=tensors)


def _weight(name: str, bindings: Mapping[str, Expression]) -> str:
    """Return the name of the weight that has a matrix."""
    return name if name in bindings else name.rpartition(".")[0]


def _formats(columns: Sequence[int], blocks: Sequence[int]) -> tuple[Format, ...]:
    """Return the formats whose blocks divide all rows; the smallest blocks if none do."""
    whole = [size for size in blocks if all(count % size == 0 for count in columns)]
    few, many = MIXED
    return (
        *(format_of(few, size) for size in whole or blocks[:1]),
        *(format_of(many, size) for size in whole[-2:] or blocks[:1]),
    )


def _parts(program: Draft, tensors: Any) -> Iterable[Slot]:
    """Return the slots of a program's integers, of joined matrices each by itself."""
    rounded = {matrix.name: matrix for matrix in program.matrices}
    for slot in program.slots:
        if slot.name in rounded:
            yield slot
            continue
        first = 0
        names = slot.name.split("+")
        for name in names if all(name in rounded for name in names) else ():
            last = first + rounded[name].rows
            yield replace(
                slot, name=name, expression=expressions.cut(0, first, last, slot.expression)
            )
            first = last


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Chosen formats of matrices, and the estimated costs of their errors.

    Args:
        formats: Format by name of the weight.
        costly: Shares of the cost of all matrices, by name of the weight, of those that cost most.
        more: Cost of mixtures with more bits a weight, relative to this one, by these bits.
    """

    formats: Mapping[str, Format] = field(default_factory=dict)
    costly: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[float, float] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """For people: matrices that cost most, and what more bits would cost; empty for a mixture of no matrices."""
        shares = [f"{name} ({share:.0%} of the cost)" for name, share in self.costly.items()]
        others = [
            f"--bits {bits:g} costs {cost:.2g} times this" for bits, cost in self.more.items()
        ]
        return ", ".join([*shares, *others])


def choose(
    matrices: Matrices,
    bits: float,
    source: TensorSource,
    measured: Measured,
    progress: Callable[[int], None] = lambda done: None,
) -> Mixture:
    """Choose the formats that cost least of those with so many bits a weight.

    Args:
        matrices: All matrices of a package.
        bits: Bits a weight, within the bounds of the matrices.
        source: The checkpoint.
        measured: Measured costs of errors.
        progress: Called with the number of groups whose costs became known.
    """
    costs: list[Mapping[Format, float]] = []
    for group in matrices.groups:
        costs.append(costs_of(group, source, measured))
        progress(1)
    if not matrices.groups:
        return Mixture()
    sizes = [matrices.bits(group) for group in matrices.groups]

    def within(bits: float) -> tuple[list[Format], list[float]]:
        chosen = cheapest(sizes, costs, bits * matrices.values - matrices.bits_of_fixed)
        return chosen, [cost[format] for cost, format in zip(costs, chosen, strict=True)]

    chosen, each = within(bits)
    total = max(sum(each), float(np.finfo(np.float32).tiny))
    most = matrices.bounds[1]
    costly = sorted(zip(each, matrices.groups, strict=True), key=lambda one: -one[0])[:_COSTLY]
    return Mixture(
        formats={
            name: format
            for group, format in zip(matrices.groups, chosen, strict=True)
            for name in group.names
        },
        costly={group.names[0]: cost / total for cost, group in costly if cost > 0},
        more={
            other: sum(within(other)[1]) / total
            for other in (round(bits + more, 1) for more in _MORE)
            if other <= most
        },
    )


def cheapest(
    sizes: Sequence[Mapping[Format, int]], costs: Sequence[Mapping[Format, float]], budget: float
) -> list[Format]:
    """Return one format each, so that the sum of costs is least and that of bits within the budget.

    Args:
        sizes: Bits of each group, by format.
        costs: Costs of each, by the same formats.
        budget: Bits that all may have, at least the sum of the least ones.
    """
    least = [min(each.values()) for each in sizes]
    step = max(1, (sum(max(each.values()) for each in sizes) - sum(least)) // _STEPS)
    room = max(
        0, int(budget - sum(least)) // step
    )  # the budget of the least bits may be a fraction lower
    best, choices = np.zeros(room + 1), []
    for number, (each, cost) in enumerate(zip(sizes, costs, strict=True)):
        found = np.full(room + 1, np.inf)
        choice = np.zeros(room + 1, np.uint8)
        for index, format in enumerate(each):
            more = -(-(each[format] - least[number]) // step)
            if more > room:
                continue
            sums = best[: room + 1 - more] + cost[format]
            better = sums < found[more:]
            found[more:][better], choice[more:][better] = sums[better], index
        best = found
        choices.append(choice)
    chosen: list[Format] = []
    for number in reversed(range(len(sizes))):
        format = [*sizes[number]][choices[number][room]]
        room -= -(-(sizes[number][format] - least[number]) // step)
        chosen.append(format)
    return chosen[::-1]


def costs_of(group: Group, source: TensorSource, measured: Measured) -> dict[Format, float]:
    """Estimate what each format of a group costs, in nats.

    Args:
        group: The group.
        source: The checkpoint.
        measured: Measured costs of errors; where there are none, errors relative to the squares of weights count.

    Raises:
        CheckpointError: A sampled value is infinite or not a number.
    """
    costs = dict.fromkeys(group.formats, 0.0)
    for slot in group.slots:
        by = of_matrix(measured.importance, slot.name)
        factors = of_matrix(measured.costs, slot.name)
        looked_up = slot.name in group.looked_up
        for number, rows, portion, matrix in _samples(slot.expression, source):
            weights = by if by is None or by.ndim == 1 else by[number]
            even = np.ones(1, np.float32)
            size = max(_sum(matrix, even), float(np.finfo(np.float32).tiny))
            for format in costs:
                try:
                    errors = matrix - round_trip(matrix, format, weights)
                except ValueError as error:
                    rounded = replace(slot, format=format)
                    raise unstorable(rounded, slot.expression, error) from error
                relative = portion * _sum(errors, even) / size
                if factors is None:
                    costs[format] += relative * (_LOOKED_UP if looked_up else _TYPICAL)
                    continue
                known = _sum(errors, factors if factors.ndim == 1 else factors[number])
                costs[format] += known * rows / len(matrix) + relative * _LOOKED_UP * looked_up
    return costs


def _sum(values: Array, weights: Array) -> float:
    return float((np.square(values) * weights).sum(dtype=np.float64))


def _samples(value: Expression, source: TensorSource) -> Iterator[tuple[int, float, float, Array]]:
    """Yield some rows of some matrices of a stack, or of the one there is, which stand for all.

    Args:
        value: A matrix, or a stack.
        source: The checkpoint.

    Yields:
        Number of the matrix, number of rows that its rows stand for, portion of the stack that it stands for, its rows.
    """

    @lru_cache(maxsize=len(sources_of(value)))
    def read(name: str, start: int | None, stop: int | None) -> Array:
        return to_float32(source.read(name, start, stop), source.tensors[name].dtype)

    shape = shape_of(value, source.tensors)
    stacked = len(shape) > 2
    numbers = _spread(shape[0], _MATRICES) if stacked else [0]
    for number in numbers:
        one = expressions.index(number, value) if stacked else value
        starts = _spread(-(-shape[-2] // _RUN), _RUNS // len(numbers))
        parts = [
            expressions.rows(one, read, source.tensors, at * _RUN, min((at + 1) * _RUN, shape[-2]))
            for at in starts
        ]
        every = math.prod(shape[:-1])
        yield number, every / len(numbers), 1 / len(numbers), np.concatenate(parts)
    for name in sources_of(value):
        source.release(name)


def _spread(count: int, most: int) -> list[int]:
    """Return numbers below `count`, evenly far apart, at most so many."""
    return [number * count // min(count, most) for number in range(min(count, most))]
