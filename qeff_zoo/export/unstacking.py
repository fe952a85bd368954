# SPDX-License-Identifier: Apache-2.0
"""Unstacked experts: a linear layer for each matrix of a tensor in which transformers stacks the experts.

If the checkpoint also has one tensor, (experts, rows, columns) or (experts, columns, rows), each expert has a layer.
transformers' own code still computes: slices of the stack, or the stack itself, are multiplied by those layers, so that
their inputs can be recorded and their weights replaced.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.checkpoint.expressions import Tensors, index, shape_of, transpose
from qeff_zoo.checkpoint.types import Expression
from qeff_zoo.errors import UnsupportedModelError

#: By which functions a tensor is multiplied by a matrix (columns, rows), or by a stack of them.
_PRODUCTS = (torch.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.bmm)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a checkpoint has a matrix.

    Args:
        tensor: Name of the tensor, or of the stack that has it.
        rows: Outputs.
        columns: Inputs.
        expert: Number of the expert in the stack; None for a separate tensor.
        experts: Matrices of that stack.
        by_columns: The stack has the columns of a matrix as its rows.
    """

    tensor: str
    rows: int
    columns: int
    expert: int | None = None
    experts: int = 1
    by_columns: bool = False

    @property
    def path(self) -> str:
        """Beginning of the names that its integers get in a checkpoint."""
        if self.expert is None:
            return self.tensor.removesuffix(".weight")
        return f"{self.tensor}_by_{'columns' if self.by_columns else 'rows'}"


class Stack:
    """In place of a parameter (experts, rows, columns), or (experts, columns, rows).

    Args:
        experts: The linear layers of each, whose rows follow one another.
        shape: Shape of the parameter.
        by_columns: Whether it is the latter.
    """

    def __init__(
        self, experts: Sequence[Sequence[nn.Linear]], shape: torch.Size, *, by_columns: bool = False
    ) -> None:
        self.experts, self.shape, self._by_columns = experts, shape, by_columns

    def __getitem__(self, number: Any) -> "_Matrix":
        return _Matrix(self.experts[int(number)], by_columns=self._by_columns)

    def __getattr__(self, name: str) -> Any:
        raise _unknown(f"asks all of them for {name!r}")

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        if func not in _PRODUCTS or kwargs or not isinstance(args[1], Stack) or args[0].ndim != 3:
            raise _unknown(f"multiplies them by {getattr(func, '__name__', func)!r}")
        inputs, stack = args
        return torch.stack([func(one, stack[number]) for number, one in enumerate(inputs)])


class _Matrix:
    """An expert's matrix, which a tensor is multiplied by."""

    def __init__(self, linears: Sequence[nn.Linear], *, by_columns: bool) -> None:
        self._linears, self._by_columns = linears, by_columns

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        wanted = _PRODUCTS if args[1]._by_columns else (nn.functional.linear,)
        if func not in wanted or kwargs or len(args) != 2:
            raise _unknown(f"multiplies them by {getattr(func, '__name__', func)!r}")
        inputs, matrix = args
        return torch.cat([linear(inputs) for linear in matrix._linears], -1)


def _unknown(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The model's experts cannot be quantized one by one: its code {what}. Expected one product by the matrix of "
        "each expert. Build with `--weights int4` or `int8` instead."
    )


def unstack(
    model: nn.Module, expressions: dict[str, Expression], tensors: Tensors, within: str
) -> dict[str, Place]:
    """Take apart every stack of matrices.

    Args:
        model: On meta; changed in place.
        expressions: Expressions of its parameters; changed with it.
        tensors: Tensors of the checkpoint.
        within: Beginning of the names of parameters that are meant.

    Returns:
        By names of the linear layers, what the checkpoint has of them.
    """
    unstacked = {}
    for name, expression in list(expressions.items()):
        if not name.startswith(within):
            continue
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        matrices = _matrices(expression, tensors) or _items(owner, last, expression, tensors)
        if not matrices:
            continue
        shape = owner._parameters[last].shape  # type: ignore[union-attr]
        del expressions[name], owner._parameters[last]
        experts = []
        for number, parts in enumerate(matrices):
            expert = owner._modules.setdefault(str(number), nn.Module())
            assert expert is not None
            linears = []
            for place in parts:
                called = place.tensor.removesuffix(".weight").rpartition(".")[2]
                linears.append(nn.Linear(place.columns, place.rows, bias=False, device="meta"))
                expert.add_module(called, linears[-1])
                expressions[f"{path}.{number}.{called}.weight"] = _value(place)
                unstacked[f"{path}.{number}.{called}"] = place
            experts.append(linears)
        by_columns = matrices[0][0].by_columns
        # Found before `nn.Module` looks for one.
        owner.__dict__[last] = Stack(experts, shape, by_columns=by_columns)
    return unstacked


def _value(place: Place) -> Expression:
    if place.expert is None:
        return place.tensor
    item = index(place.expert, place.tensor)
    return transpose(0, 1, item) if place.by_columns else item


def _matrices(expression: Expression, tensors: Tensors) -> list[list[Place]]:
    """Return the matrices of each expert; nothing where an expression is no stack of them."""
    if isinstance(expression, str):
        return []
    experts, *rest = shape_of(expression, tensors)
    items = [index(number, expression) for number in range(experts if len(rest) == 2 else 0)]
    parts = [item[2:] if item[:2] == ["concat", 0] else [item] for item in items]
    matrices = [[one for one in part if isinstance(one, str)] for part in parts]
    if matrices != parts:
        return []
    return [
        [
            Place(tensor=one, rows=tensors[one].shape[0], columns=tensors[one].shape[1])
            for one in part
        ]
        for part in matrices
    ]


def _items(
    owner: nn.Module, last: str, expression: Expression, tensors: Tensors
) -> list[list[Place]]:
    """Return the matrix of each expert where the checkpoint has all in one tensor; nothing for what else it has."""
    by_columns = getattr(owner, "is_transposed", None)
    if by_columns is None and "bmm" in type(owner).forward.__code__.co_names:
        by_columns = True
    if by_columns is None or not isinstance(expression, str) or last == "weight":
        return []
    shape = tensors[expression].shape
    if len(shape) != 3:
        return []
    experts, rows, columns = shape if not by_columns else (shape[0], shape[2], shape[1])
    whole = Place(
        tensor=expression, rows=rows, columns=columns, experts=experts, by_columns=by_columns
    )
    return [[replace(whole, expert=number)] for number in range(experts)]
