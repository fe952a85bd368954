# SPDX-License-Identifier: Apache-2.0
"""Experts that transformers holds as one tensor, taken apart: a linear layer for each matrix of the checkpoint.

transformers' own code still computes with them, expert by expert: what it takes out of the stack is multiplied by those
layers, so that their inputs can be seen and their weights exchanged like those of any other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.weights.expressions import Expression, Tensors, index, shape_of


class Stack:
    """In place of a parameter (experts, rows, columns).

    Args:
        experts: The linear layers of each, whose rows follow one another.
    """

    def __init__(self, experts: Sequence[Sequence[nn.Linear]]) -> None:
        self.experts = experts

    def __getitem__(self, number: Any) -> "_Matrix":
        return _Matrix(self.experts[int(number)])

    def __getattr__(self, name: str) -> Any:
        raise _unknown(f"asks all of them for {name!r}")


class _Matrix:
    """An expert's rows, (rows, columns), which a tensor is multiplied by."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._linears = linears

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        if func is not nn.functional.linear or kwargs or len(args) != 2:
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
) -> set[str]:
    """Take apart every stack of matrices that the checkpoint has one by one.

    Args:
        model: On meta; changed in place.
        expressions: Of its parameters; changed with it.
        tensors: Of the checkpoint.
        within: Beginning of the names of parameters that are meant.

    Returns:
        Names of the linear layers.
    """
    made = set()
    for name, expression in list(expressions.items()):
        sources = _matrices(expression, tensors)
        if not sources or not name.startswith(within):
            continue
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        del expressions[name], owner._parameters[last]
        experts = []
        for number, parts in enumerate(sources):
            expert = owner._modules.setdefault(str(number), nn.Module())
            assert expert is not None
            linears = []
            for source in parts:
                rows, columns = tensors[source].shape
                called = source.removesuffix(".weight").rpartition(".")[2]
                linears.append(nn.Linear(columns, rows, bias=False, device="meta"))
                expert.add_module(called, linears[-1])
                expressions[f"{path}.{number}.{called}.weight"] = source
                made.add(f"{path}.{number}.{called}")
            experts.append(linears)
        owner.__dict__[last] = Stack(experts)  # found before `nn.Module` looks for one
    return made


def _matrices(expression: Expression, tensors: Tensors) -> list[list[str]]:
    """Return the matrices of each expert; nothing where an expression is no stack of them."""
    if isinstance(expression, str):
        return []
    experts, *rest = shape_of(expression, tensors)
    items = [index(number, expression) for number in range(experts if len(rest) == 2 else 0)]
    parts = [item[2:] if item[:2] == ["concat", 0] else [item] for item in items]
    found = [[one for one in part if isinstance(one, str)] for part in parts]
    return found if found == parts else []
