# SPDX-License-Identifier: Apache-2.0
"""How a package stores each matrix: as the checkpoint does where a kernel takes that, else rounded, else in floats."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING

from qeff_zoo.checkpoint.expressions import Shapes, is_computed, shape_of, sources_of
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.graph.numerics import FLOAT32, NEAREST, Format

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.encoded import Encoded, Floats, Integers

_BITS, _BLOCKS = (2, 4, 8), (256, 128, 64, 32, 16)
#: What follows the name of a module in that of its matrix.
_MATRIX = re.compile(r"(\.weight)?(\.\d+)?$")
_BY_ROWS = 128  # columns of a block where a whole row shares its scale


@dataclass(frozen=True)
class Storage:
    """What matrices become.

    Args:
        floats: Matrices that the checkpoint has in floats.
        encoded: Matrices that the checkpoint stores in fewer bits and that stay so; empty if they are rounded as all
            others.
        named: Patterns of names (`*` and `?` as in file names), and what those become that fit; the first counts.
        chosen: Formats of matrices that the checkpoint has in floats, by their names, if they are not `floats`; one of
            several in a weight has that of its weight.
    """

    floats: Format
    encoded: "Mapping[str, Encoded]" = field(default_factory=dict)
    named: tuple[tuple[str, Format], ...] = ()
    chosen: Mapping[str, Format] = field(default_factory=dict)

    @property
    def has_integers(self) -> bool:
        """Whether any matrix may become one of integers."""
        formats = [self.floats, *(format for _, format in self.named)]
        return bool(self.encoded) or not all(format.is_float for format in formats)

    def pattern_of(self, name: str) -> str | None:
        """Return the first pattern that a matrix's name fits, with or without `.weight`; None for none."""
        names = (name, _MATRIX.sub("", name))
        patterns = (pattern for pattern, _ in self.named)
        return next((one for one in patterns if any(fnmatchcase(it, one) for it in names)), None)

    def order_of(self, value: Expression) -> str:
        """Return the digest of the order of a matrix's columns; nothing if they are in their own."""
        integers = self.encoded[sources_of(value)[0]].integers
        return integers.order.digest if integers and integers.order else ""

    def of(
        self, name: str, value: Expression, takes: Callable[[Format], bool]
    ) -> tuple[Format, bool]:
        """Return the format of a matrix, and whether the checkpoint has it so.

        Args:
            name: Name of its weight, and the number of the matrix if that has several.
            value: Expression of the matrix.
            takes: Predicate: whether the target computes with integers of a format.
        """
        if (pattern := self.pattern_of(name)) is not None:
            return dict(self.named)[pattern], False
        sources = sources_of(value)
        found = [self.encoded[name] for name in sources if name in self.encoded]
        if not found:
            whole = name.rpartition(".")[0]
            return self.chosen.get(name) or self.chosen.get(whole, self.floats), False
        integers = [one.integers for one in found if one.integers]
        if not integers:
            return NEAREST, False
        together = (
            len(integers) == len(sources)
            and not is_computed(value)
            and moves_rows(value, self.encoded)
        )
        if self.floats.per_channel:  # as all is that is encoded
            return self.floats, together
        formats = _joined(integers, found[0].shape[-1]) if together else iter(())
        format = next(filter(takes, formats), None)
        return (FLOAT32, False) if format is None else (format, True)

    def floats_of(self, name: str, value: Expression) -> Format | None:
        """Return the format of a matrix, or of a stack, that the checkpoint has in 8-bit floats; None for others.

        Args:
            name: Name of its weight.
            value: Expression of the weight.
        """
        found = [self.encoded[one].floats for one in sources_of(value) if one in self.encoded]
        whole = len(found) == len(sources_of(value)) and not is_computed(value)
        if not whole or self.pattern_of(name) is not None or not moves_rows(value, self.encoded):
            return None
        columns = shape_of(value, self.encoded)[-1]
        formats = {None if one is None else _float8(one, columns) for one in found}
        return formats.pop() if len(formats) == 1 else None


def _float8(floats: "Floats", columns: int) -> Format:
    """Return the format of rows of 8-bit floats with that many columns."""
    block = floats.group if floats.group < columns else 0
    return Format(bits=8, block=block, scale=floats.scale, element=floats.element)


def _joined(every: "list[Integers]", columns: int) -> Iterator[Format]:
    """Yield formats that hold rows of several matrices, the smallest first; none if they have none in common."""
    kinds = {
        (one.bits, one.group, one.zeros is None, one.offsets is None, one.order is None)
        for one in every
    }
    factors = {(one.scale, one.small_scales and one.small_scales.groups) for one in every}
    first = every[0]
    blocks = [size for size in _BLOCKS if first.group % size == 0]
    if first.group >= columns and columns % (blocks or [_BY_ROWS])[0]:
        blocks = [_BY_ROWS]
    if first.offsets:  # graphs sum what they multiply by blocks, all of one length
        blocks = [size for size in blocks if columns % size == 0]
    if len(kinds) > 1 or (first.order and len(every) > 1):
        return
    for bits, block in product([bits for bits in _BITS if bits >= first.bits], blocks):
        format = Format(
            bits=bits,
            block=block,
            zero_points=first.zeros is not None and first.offsets is None,
            offsets=first.offsets is not None,
            act_order=first.order is not None,
        )
        if len(factors) == 1 and first.scale != format.scale and block == first.group:
            yield replace(
                format,
                scale=first.scale,
                super_block=first.small_scales.groups if first.small_scales else 0,
                origin=1 << (first.bits - 1) if first.offsets and first.zeros else 0,
            )
        yield format


def moves_rows(e: Expression, tensors: Shapes) -> bool:
    """Whether an expression leaves every row of its matrices whole.

    Args:
        e: Expression of matrices.
        tensors: Shapes of the checkpoint's tensors.
    """
    if isinstance(e, str):
        return True
    rank = len(shape_of(e, tensors))
    match e:
        case ["concat" | "stack", dim, *parts]:
            return dim < rank - 1 and all(moves_rows(part, tensors) for part in parts)
        case ["index", _, inner]:
            return rank > 0 and moves_rows(inner, tensors)
        case ["slice", dim, _, _, inner]:
            return dim < rank - 1 and moves_rows(inner, tensors)
        case ["transpose", _, dim1, inner]:
            return dim1 < rank - 1 and moves_rows(inner, tensors)
        case ["reshape", shape, inner]:
            same = shape[-1:] == list(shape_of(inner, tensors)[-1:])
            return same and moves_rows(inner, tensors)
    raise ValueError(f"No operation {e[0]!r}.")
