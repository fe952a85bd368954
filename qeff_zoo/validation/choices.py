# SPDX-License-Identifier: Apache-2.0
"""What a package chooses: the experts of a token, the keys that an indexer keeps.

A router that is right may choose otherwise than the reference where two scores lie nearer than the noise, and all that
follows is another result. So the graph is made to return its choices as well, token by token, and the reference, which
knows how near its own scores were, follows those that noise can explain (see `qeff_zoo.validation.reference_choices`).

A choice is found by what computes it: `TopK` and `ArgMax` here, `topk` and `max` in transformers' code, in one order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: Operator -> what its choices are called, and which of its outputs has the indices.
_OPERATORS = {"TopK": ("topk", 1), "ArgMax": ("max", 0)}
_INT64 = 7  # of ONNX's types


@dataclass
class Run:
    """A sequence that a row began, and what was chosen for its tokens.

    Args:
        sequence: Its number.
        chosen: By choice, of every call (tokens, slots, k): a slot is a head or a group, k are indices.
    """

    sequence: int
    chosen: dict[str, list[Array]] = field(default_factory=dict)

    def note(self, chosen: Mapping[str, Array]) -> None:
        """Add the choices for the next tokens."""
        for name, indices in chosen.items():
            self.chosen.setdefault(name, []).append(indices)

    def all(self) -> dict[str, Array]:
        """Return by choice (tokens, slots, k)."""
        return {name: np.concatenate(found) for name, found in self.chosen.items()}


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A graph that returns its choices too.

    Args:
        graph: As bytes, without weights.
        names: Output -> what its choice is called: "topk.0" is the first of its kind.
    """

    graph: bytes
    names: Mapping[str, str]

    def read(self, outputs: Mapping[str, Array], batch: int, width: int) -> dict[str, Array]:
        """Return by choice (batch, width, slots, k), of those that are made for every token of a call."""
        found = {}
        for output, name in self.names.items():
            indices = outputs[output].astype(np.int32)
            if name.startswith("max.") and indices.shape[-1:] != (1,):
                indices = indices[..., None]
            by_tokens = by_token(indices, batch, width)
            if by_tokens is not None:
                found[name] = by_tokens
        return found


def watch(graph: Path) -> Watched | None:
    """Let a package's graph return its choices; None where it makes none.

    Args:
        graph: The ONNX file.
    """
    import onnx

    model = onnx.load(graph, load_external_data=False)
    inputs = {value.name for value in model.graph.input}
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for node in model.graph.node:
        # The newest position is an index too, but nothing chose it.
        if node.op_type not in _OPERATORS or node.input[0] in inputs:
            continue
        kind, place = _OPERATORS[node.op_type]
        node.output[place] = node.output[place] or f"{node.name}.indices"
        names[node.output[place]] = f"{kind}.{counts[kind]}"
        counts[kind] += 1
    for name in names:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, _INT64, None))
    return Watched(graph=model.SerializeToString(), names=names) if names else None


def by_token(values: Array, batch: int, width: int) -> Array | None:
    """Bring what was computed for every token of a call into one shape.

    Args:
        values: (batch * width, …, n), or (batch, …, n) with an axis of the tokens.
        batch: Rows of the call.
        width: Tokens of each.

    Returns:
        (batch, width, slots, n), or None where no axis is that of the tokens.
    """
    axis = token_axis(values.shape, batch, width)
    if axis is None:
        return None
    moved = np.moveaxis(values, axis, 1) if axis else values
    return moved.reshape(batch, width, -1, values.shape[-1])


def as_it_was(values: Array, shape: Sequence[int], batch: int, width: int) -> Array:
    """Undo `by_token`.

    Args:
        values: (batch, width, slots, n).
        shape: That the values had; the last axis may have had another size.
        batch: Rows of the call.
        width: Tokens of each.
    """
    axis, last = token_axis(shape, batch, width), values.shape[-1]
    if not axis:
        return values.reshape(*shape[:-1], last)
    others = [size for place, size in enumerate(shape[1:-1], 1) if place != axis]
    return np.moveaxis(values.reshape(batch, width, *others, last), 1, axis)


def token_axis(shape: Sequence[int], batch: int, width: int) -> int | None:
    """Return which axis is that of the tokens: 0 where rows and tokens are one, None where there is none."""
    if not shape[:-1]:
        return None
    if shape[0] == batch * width:
        return 0
    axes = [axis for axis in range(1, len(shape) - 1) if shape[axis] == width]
    return axes[-1] if axes and shape[0] == batch else None


def members(indices: Array, options: int) -> Array:
    """Tell of every option whether it was chosen.

    Args:
        indices: (…, k); those that are no option count for nothing.
        options: n.

    Returns:
        (…, n), bool.
    """
    kept = np.where((indices >= 0) & (indices < options), indices, options)
    found = np.zeros((*indices.shape[:-1], options + 1), bool)
    np.put_along_axis(found, kept, True, axis=-1)
    return found[..., :-1]
