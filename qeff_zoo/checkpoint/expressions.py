# SPDX-License-Identifier: Apache-2.0
"""How a tensor is made of checkpoint tensors, as JSON: built, simplified, measured and read.

    "name"                              the checkpoint tensor of that name
    ["concat", dim, e1, e2, …]          joined along an axis they have
    ["stack", dim, e1, e2, …]           joined along a new axis
    ["index", i, e]                     item i of the first axis, which goes
    ["slice", dim, start, stop, e]      part of an axis
    ["transpose", dim0, dim1, e]        two axes swapped, dim0 < dim1
    ["reshape", [length, …], e]         the same elements in the same order

and, of what adapters change, computed in float32 of what is read:

    ["sum", factor, e1, e2]             e1 + factor * e2
    ["matmul", e1, e2]                  the product of two matrices
    ["lengths", dim, e, lengths]        a matrix whose rows (dim 0) or columns (dim 1) are scaled to these lengths

The functions below push `index`, `slice` and `transpose` inwards, so that a part of a tensor that
is joined from many reads only what it needs.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array, Expression, Read
from qeff_zoo.errors import CheckpointError

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.encoded import Encoded


Tensors: TypeAlias = Mapping[str, TensorInfo]

_ARITHMETIC = ("sum", "matmul", "lengths")


class Shaped(Protocol):
    """What has a shape: a `TensorInfo` is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""


Shapes: TypeAlias = Mapping[str, Shaped]


class TensorSource(Protocol):
    """Where tensors are read from; a `Checkpoint` is one."""

    @property
    def tensors(self) -> Tensors:
        """Every tensor, by name."""

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> "Array":
        """Show rows `start:stop` of a tensor; BF16 as uint16."""

    def release(self, name: str) -> None:
        """Give back the memory behind a tensor that has been read."""

    @property
    def encoded(self) -> "Mapping[str, Encoded]":
        """Of those tensors, the ones that are stored in fewer bits."""

    def read_stored(self, name: str, start: int | None = None, stop: int | None = None) -> "Array":
        """Show rows of a tensor that such a one is stored in."""


def concat(dim: int, *parts: Expression) -> Expression:
    """Join tensors along an axis they have."""
    flat: list[Expression] = []
    for part in parts:
        flat += part[2:] if part[:2] == ["concat", dim] else [part]
    return flat[0] if len(flat) == 1 else ["concat", dim, *flat]


def stack(dim: int, *parts: Expression) -> Expression:
    """Join tensors of one shape along a new axis."""
    return ["stack", dim, *parts]


def index(i: int, e: Expression) -> Expression:
    """Take item `i` of the first axis."""
    match e:
        case ["stack", 0, *parts]:
            return _part(parts, i)
        case ["stack", dim, *parts]:
            return stack(dim - 1, *(index(i, part) for part in parts))
        case ["concat", dim, *parts] if dim > 0:
            return concat(dim - 1, *(index(i, part) for part in parts))
        case ["slice", 0, start, stop, inner] if i < stop - start:
            return index(start + i, inner)
        case ["slice", dim, start, stop, inner] if dim > 0:
            return cut(dim - 1, start, stop, index(i, inner))
        case ["transpose", dim0, dim1, inner] if dim0 > 0:
            return transpose(dim0 - 1, dim1 - 1, index(i, inner))
        case ["sum", factor, *terms]:
            return ["sum", factor, *(index(i, term) for term in terms)]
    return ["index", i, e]


def _part(parts: list[Expression], i: int) -> Expression:
    if not 0 <= i < len(parts):
        raise IndexError(f"Item {i} of a stack of {len(parts)}.")
    return parts[i]


def cut(dim: int, start: int, stop: int, e: Expression) -> Expression:
    """Take `start:stop` of an axis."""
    match e:
        case ["slice", inner_dim, first, last, inner] if inner_dim == dim and stop <= last - first:
            return ["slice", dim, first + start, first + stop, inner]
        case ["stack", inner_dim, *parts] if inner_dim == dim and stop <= len(parts):
            return stack(dim, *parts[start:stop])
        case ["stack", inner_dim, *parts] if inner_dim != dim:
            return stack(
                inner_dim, *(cut(dim - (dim > inner_dim), start, stop, part) for part in parts)
            )
        case ["concat", inner_dim, *parts] if inner_dim != dim:
            return concat(inner_dim, *(cut(dim, start, stop, part) for part in parts))
        case ["transpose", dim0, dim1, inner]:
            return transpose(dim0, dim1, cut(_swapped(dim, dim0, dim1), start, stop, inner))
        case ["sum", factor, *terms]:
            return ["sum", factor, *(cut(dim, start, stop, term) for term in terms)]
        case ["matmul", left, right]:
            if dim == 0:
                return matmul(cut(0, start, stop, left), right)
            return matmul(left, cut(1, start, stop, right))
        case ["lengths", 0, inner, lengths] if dim == 0:
            return scaled_to(0, cut(0, start, stop, inner), cut(0, start, stop, lengths))
    return ["slice", dim, start, stop, e]


def transpose(dim0: int, dim1: int, e: Expression) -> Expression:
    """Swap two axes."""
    dim0, dim1 = sorted((dim0, dim1))
    if dim0 == dim1:
        return e
    match e:
        case ["transpose", a, b, inner] if (a, b) == (dim0, dim1):
            return _expression(inner)
        case ["concat", dim, *parts]:
            return concat(
                _swapped(dim, dim0, dim1), *(transpose(dim0, dim1, part) for part in parts)
            )
        case ["stack", dim, *parts] if dim not in (dim0, dim1):
            a, b = dim0 - (dim0 > dim), dim1 - (dim1 > dim)
            return stack(dim, *(transpose(a, b, part) for part in parts))
        case ["sum", factor, *terms]:
            return ["sum", factor, *(transpose(dim0, dim1, term) for term in terms)]
        case ["matmul", left, right]:
            return matmul(transpose(0, 1, right), transpose(0, 1, left))
        case ["lengths", dim, inner, lengths]:
            return scaled_to(1 - dim, transpose(0, 1, inner), lengths)
    return ["transpose", dim0, dim1, e]


def reshape(shape: tuple[int, ...], e: Expression) -> Expression:
    """See the elements, in order, in another shape."""
    return ["reshape", list(shape), _expression(e[2]) if e[0] == "reshape" else e]


def plus(e: Expression, factor: float, other: Expression) -> Expression:
    """Add a multiple of a tensor of the same shape."""
    return ["sum", factor, e, other]


def matmul(left: Expression, right: Expression) -> Expression:
    """Multiply two matrices."""
    return ["matmul", left, right]


def scaled_to(dim: int, e: Expression, lengths: Expression) -> Expression:
    """Scale a matrix's rows (dim 0) or columns (dim 1) to lengths, one each."""
    return ["lengths", dim, e, lengths]


def is_computed(e: Expression) -> bool:
    """Whether an expression does more than move values."""
    if isinstance(e, str):
        return False
    return e[0] in _ARITHMETIC or any(is_computed(part) for part in e[_first_part(e) :])


def substitute(e: Expression, values: Mapping[str, Expression]) -> Expression:
    """Replace tensors by what they are made of.

    Args:
        e: Over names.
        values: Expressions of some of those names, over others.
    """
    if isinstance(e, str):
        return values.get(e, e)
    match e:
        case ["concat" | "stack" as op, dim, *parts]:
            substituted = [substitute(part, values) for part in parts]
            return concat(dim, *substituted) if op == "concat" else stack(dim, *substituted)
        case ["index", i, inner]:
            return index(i, substitute(inner, values))
        case ["slice", dim, start, stop, inner]:
            return cut(dim, start, stop, substitute(inner, values))
        case ["transpose", dim0, dim1, inner]:
            return transpose(dim0, dim1, substitute(inner, values))
        case ["reshape", shape, inner]:
            return reshape(tuple(shape), substitute(inner, values))
        case ["sum" | "matmul" | "lengths", *_]:
            first = _first_part(e)
            return [*e[:first], *(substitute(part, values) for part in e[first:])]
    raise ValueError(f"No operation {e[0]!r}.")


def _expression(e: Any) -> Expression:
    return e if isinstance(e, str) else list(e)


def _swapped(dim: int, dim0: int, dim1: int) -> int:
    return {dim0: dim1, dim1: dim0}.get(dim, dim)


def sources_of(e: Expression) -> list[str]:
    """Name the checkpoint tensors an expression reads, each once, in order."""
    if isinstance(e, str):
        return [e]
    return list(dict.fromkeys(name for part in e[_first_part(e) :] for name in sources_of(part)))


def _first_part(e: list[Any]) -> int:
    return {"slice": 4, "transpose": 3, "matmul": 1}.get(e[0], 2)


def shape_of(e: Expression, tensors: Shapes) -> tuple[int, ...]:
    """Compute an expression's shape.

    Raises:
        CheckpointError: A tensor is missing, or the shapes do not fit together.
    """
    if isinstance(e, str):
        if e not in tensors:
            raise CheckpointError(
                f"No tensor {e!r} in the checkpoint. Expected it, as the model is made of it. "
                "Check that config.json belongs to these weights and that no shard is missing."
            )
        return tensors[e].shape
    try:
        return _shape_of(e, tensors)
    except (IndexError, ValueError) as error:
        raise CheckpointError(
            f"Cannot form {_brief(e)}: {error} Expected tensors whose shapes fit together. "
            "Check that config.json belongs to these weights and that no shard is missing."
        ) from error


def _shape_of(e: list[Any], tensors: Shapes) -> tuple[int, ...]:
    match e:
        case ["concat" | "stack" as op, dim, *parts]:
            return _joined(op, dim, [shape_of(part, tensors) for part in parts])
        case ["index", i, inner]:
            shape = shape_of(inner, tensors)
            if not 0 <= i < shape[0]:
                raise IndexError(f"Item {i} of {shape[0]}.")
            return shape[1:]
        case ["slice", dim, start, stop, inner]:
            shape = shape_of(inner, tensors)
            if not 0 <= start <= stop <= shape[dim]:
                raise IndexError(f"Items {start} to {stop} of {shape[dim]}.")
            return (*shape[:dim], stop - start, *shape[dim + 1 :])
        case ["transpose", dim0, dim1, inner]:
            axes = list(shape_of(inner, tensors))
            axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
            return tuple(axes)
        case ["reshape", new, inner]:
            if math.prod(new) != math.prod(shape_of(inner, tensors)):
                raise ValueError(f"{list(shape_of(inner, tensors))} cannot become {new}.")
            return tuple(new)
        case ["sum", _, *terms]:
            one, other = (shape_of(term, tensors) for term in terms)
            if one != other:
                raise ValueError(f"{list(one)} and {list(other)} have no sum.")
            return one
        case ["matmul", *factors]:
            (rows, inner), (same, columns) = (shape_of(factor, tensors) for factor in factors)
            if inner != same:
                raise ValueError(f"{[rows, inner]} and {[same, columns]} have no product.")
            return rows, columns
        case ["lengths", dim, inner, lengths]:
            shape = shape_of(inner, tensors)
            if shape_of(lengths, tensors) != (shape[dim],):
                raise ValueError(f"{list(shape)} needs {shape[dim]} lengths.")
            return shape
    raise ValueError(f"No operation {e[0]!r}.")


def _joined(op: str, dim: int, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    kept = 0 if op == "stack" else 1
    if len({(*shape[:dim], *shape[dim + kept :], len(shape)) for shape in shapes}) != 1:
        raise ValueError(f"{op} along axis {dim} of {[list(shape) for shape in shapes[:8]]}.")
    length = len(shapes) if op == "stack" else sum(shape[dim] for shape in shapes)
    return (*shapes[0][:dim], length, *shapes[0][dim + kept :])


def _brief(e: Expression) -> str:
    names = sources_of(e)
    return ", ".join(map(repr, names[:2])) + (f" and {len(names) - 2} more" * (len(names) > 2))


def blocks(e: Expression, tensors: Shapes, limit: int) -> Iterator[tuple[Expression, int, int]]:
    """Cut a tensor into pieces that, one after the other, are its elements in order.

    Args:
        e: The tensor.
        tensors: The checkpoint's.
        limit: Most elements of a piece; a row of the last axis is never cut, however long.

    Yields:
        An expression and the rows `start:stop` of it to read with `rows`.
    """
    length, *rest = shape_of(e, tensors) or (1,)
    if e[:2] == ["concat", 0] or (e[:2] == ["stack", 0] and len(rest) > 1):
        for part in e[2:]:
            yield from blocks(part, tensors, limit)
        return
    row = math.prod(rest)
    if row > limit and len(rest) > 1:
        for i in range(length):
            yield from blocks(index(i, e), tensors, limit)
    elif row:
        step = max(1, limit // row)
        for start in range(0, length, step):
            yield e, start, min(start + step, length)


def rows(
    e: Expression, read: Read, tensors: Shapes, start: int | None = None, stop: int | None = None
) -> "Array":
    """Read rows `start:stop` of a tensor, all by default; a view of the checkpoint if possible.

    Args:
        e: The tensor.
        read: Reads rows of one checkpoint tensor.
        tensors: The checkpoint's.
        start: First row.
        stop: Row after the last.
    """
    import numpy as np

    match e:
        case str():
            return read(e, start, stop) if tensors[e].shape else read(e, None, None)
        case ["stack", 0, *parts]:
            return np.stack([rows(part, read, tensors) for part in parts[start:stop]])
        case ["concat", 0, *parts]:
            return _concat_rows(parts, read, tensors, start, stop)
        case ["stack", dim, *parts]:
            return np.stack([rows(part, read, tensors, start, stop) for part in parts], dim)
        case ["concat", dim, *parts]:
            return np.concatenate([rows(part, read, tensors, start, stop) for part in parts], dim)
        case ["index", i, inner]:
            item: Array = np.asarray(rows(inner, read, tensors, i, i + 1)[0])
            return item[start:stop] if item.ndim else item
        case ["slice", 0, first, last, inner]:
            after = last if stop is None else first + stop
            return rows(inner, read, tensors, first + (start or 0), after)
        case ["slice", dim, first, last, inner]:
            picked = (slice(None),) * dim + (slice(first, last),)
            part: Array = rows(inner, read, tensors, start, stop)[picked]
            return part
        case ["transpose", 0, dim1, inner]:
            return rows(inner, read, tensors).swapaxes(0, dim1)[start:stop]
        case ["transpose", dim0, dim1, inner]:
            return rows(inner, read, tensors, start, stop).swapaxes(dim0, dim1)
        case ["reshape", shape, inner]:
            return _reshaped_rows(shape, inner, read, tensors, start, stop)
        case ["sum", factor, *terms]:
            one, other = (rows(term, read, tensors, start, stop) for term in terms)
            return one + np.float32(factor) * other
        case ["matmul", left, right]:
            # In float64, so that the float32 of it is the same on every machine.
            product = rows(left, read, tensors, start, stop).astype(np.float64)
            return (product @ rows(right, read, tensors).astype(np.float64)).astype(np.float32)
        case ["lengths", dim, inner, lengths]:
            return _scaled_rows(dim, inner, lengths, read, tensors, start, stop)
    raise ValueError(f"No operation {e[0]!r}.")


def _reshaped_rows(
    shape: list[int],
    inner: Expression,
    read: Read,
    tensors: Shapes,
    start: int | None,
    stop: int | None,
) -> "Array":
    """Read rows of a reshaped tensor; only those, where each of its old rows became a few whole rows."""
    length, *_ = shape_of(inner, tensors) or (0,)
    if stop is None or not length or not shape or shape[0] % length:
        whole: Array = rows(inner, read, tensors).reshape(shape)
        return whole[start:stop] if shape else whole
    each = shape[0] // length
    first = (start or 0) // each
    read_rows = rows(inner, read, tensors, first, -(-stop // each)).reshape(-1, *shape[1:])
    return read_rows[(start or 0) - first * each : stop - first * each]


def _scaled_rows(
    dim: int,
    inner: Expression,
    lengths: Expression,
    read: Read,
    tensors: Shapes,
    start: int | None,
    stop: int | None,
) -> "Array":
    """Read rows of a matrix whose rows or columns have lengths of their own; of columns all rows are read."""
    import numpy as np

    within = (start, stop) if dim == 0 else (None, None)
    part = rows(inner, read, tensors, *within)
    now = np.sqrt(np.square(part, dtype=np.float64).sum(1 - dim, keepdims=True))
    wanted = np.expand_dims(rows(lengths, read, tensors, *within), 1 - dim)
    scaled: Array = part * (wanted / now).astype(np.float32)
    return scaled if dim == 0 else scaled[start:stop]


def _concat_rows(
    parts: list[Expression], read: Read, tensors: Shapes, start: int | None, stop: int | None
) -> "Array":
    import numpy as np

    read_parts: list[Array] = []
    position = 0
    for part in parts:
        length = shape_of(part, tensors)[0]
        first = max(0, (start or 0) - position)
        last = length if stop is None else min(length, stop - position)
        if first < last:
            read_parts.append(rows(part, read, tensors, first, last))
        position += length
    if not read_parts:
        return rows(parts[0], read, tensors, 0, 0)
    return read_parts[0] if len(read_parts) == 1 else np.concatenate(read_parts)
