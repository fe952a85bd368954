# SPDX-License-Identifier: Apache-2.0
"""Matrices of the vocabulary: embeddings and output matrices, which lose most by few bits.

In: the graphs of a package. Out: names of weights that int8 beside int4 hardly slows down.
"""

import math
from collections.abc import Iterable

from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.numerics import format_of
from qeff_zoo.weights.bound_graph import BoundGraph

#: Share of the values of all matrices up to which one of the vocabulary is int8.
_SHARE = 0.25


def is_small(shape: tuple[int, ...], values: int) -> bool:
    """Return whether a matrix of the vocabulary is int8 beside int4: small, and of complete blocks.

    Args:
        shape: Rows and columns of the matrix.
        values: Number of values in all matrices.
    """
    fits = len(shape) == 2 and shape[1] % format_of("int8").block == 0
    return fits and math.prod(shape) <= _SHARE * values


def wide(graphs: Iterable[BoundGraph]) -> frozenset[str]:
    """Return the names of weights with a row for each token that are small beside all others.

    These are tables of lookups, weights tied to them, and matrices of the same shape.

    Args:
        graphs: All graphs of a package.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    sources: dict[str, str] = {}  # bindings: tied weights have the same
    tables = set()
    for graph in graphs:
        for name, value in graph.model.graph.initializers.items():
            if not is_placeholder(value) or len(value.shape) < 2 or name not in graph.bindings:
                continue
            shapes[name], sources[name] = tuple(value.shape), str(graph.bindings[name])
            if any(use.node.op_type == "Gather" and use.idx == 0 for use in value.uses()):
                tables.add(name)
    sizes = {sources[name]: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    tied, alike = {sources[name] for name in tables}, {shapes[name] for name in tables}
    return frozenset(
        name
        for name, shape in shapes.items()
        if (sources[name] in tied or shape in alike) and is_small(shape, total)
    )
