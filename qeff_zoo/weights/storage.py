# SPDX-License-Identifier: Apache-2.0
"""How a package stores each matrix: as the checkpoint does where a kernel takes that, else rounded, else in floats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qeff_zoo.numerics import FLOAT32, NEAREST, Format
from qeff_zoo.weights.expressions import Expression, shape_of, sources_of

if TYPE_CHECKING:
    from qeff_zoo.formats.encoded import Encoded, Integers

_BITS, _BLOCKS = (2, 4, 8), (256, 128, 64, 32, 16)
_BY_ROWS = 128  # columns of a block where a whole row shares its scale


@dataclass(frozen=True)
class Storage:
    """What matrices become.

    Args:
        floats: Those that the checkpoint has in floats.
        encoded: Those that it stores in fewer bits and that are to stay so; none where they are rounded as all others.
    """

    floats: Format
    encoded: "Mapping[str, Encoded]" = field(default_factory=dict)

    def of(self, value: Expression, takes: Callable[[Format], bool]) -> tuple[Format, bool]:
        """Return the format of a matrix, and whether the checkpoint has it so.

        Args:
            value: Of the matrix.
            takes: Tells whether the target computes with integers of a format.
        """
        sources = sources_of(value)
        found = [self.encoded[name] for name in sources if name in self.encoded]
        if not found:
            return self.floats, False
        integers = [one.integers for one in found if one.integers]
        if not integers:
            return NEAREST, False
        together = len(integers) == len(sources) and _moves_rows(value, self.encoded)
        format = _joined(integers, found[0].shape[-1]) if together else None
        if format is None or not takes(format):
            return FLOAT32, False
        return format, True


def _joined(every: "list[Integers]", columns: int) -> Format | None:
    """Return the format of rows of several matrices; None if they have none in common, or blocks of no kernel."""
    kinds = {
        (one.bits, one.group, one.zeros is None, one.minima is None, one.order is None)
        for one in every
    }
    first = every[0]
    block = next((size for size in _BLOCKS if first.group % size == 0), None)
    if first.group >= columns and columns % (block or _BY_ROWS):
        block = _BY_ROWS
    if len(kinds) > 1 or block is None or (first.order and len(every) > 1):
        return None
    return Format(
        bits=next(bits for bits in _BITS if bits >= first.bits),
        block=block,
        zero_points=first.zeros is not None and first.minima is None,
        minima=first.minima is not None,
        ordered=first.order is not None,
    )


def _moves_rows(e: Expression, tensors: "Mapping[str, Encoded]") -> bool:
    """Tell whether an expression leaves every row of its matrices whole."""
    if isinstance(e, str):
        return True
    rank = len(shape_of(e, tensors))
    match e:
        case ["concat" | "stack", dim, *parts]:
            return dim < rank - 1 and all(_moves_rows(part, tensors) for part in parts)
        case ["index", _, inner]:
            return rank > 0 and _moves_rows(inner, tensors)
        case ["slice", dim, _, _, inner]:
            return dim < rank - 1 and _moves_rows(inner, tensors)
        case ["transpose", _, dim1, inner]:
            return dim1 < rank - 1 and _moves_rows(inner, tensors)
        case ["reshape", shape, inner]:
            same = shape[-1:] == list(shape_of(inner, tensors)[-1:])
            return same and _moves_rows(inner, tensors)
    raise ValueError(f"No operation {e[0]!r}.")
