# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model in other numerics: its weights rounded, its sums reordered.

Only the reference process imports this. What is rounded or reordered is as right as the original, and shows how far
right answers lie apart.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from qeff_zoo.graph import microscaling
from qeff_zoo.graph.numerics import RoundedMatrix
from qeff_zoo.validation.reference.formats.orders import Orders, order_of
from qeff_zoo.weights.importance import Importance, load, of_matrix
from qeff_zoo.weights.quantization import round_trip
from qeff_zoo.weights.smoothing import Smoothing

_INT8_MAX = 127
_PIECE = 1 << 18  # values that are rounded at once: a processor's cache holds them
_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm.default: _aten.mm.default,
    _aten.addmm.default: _aten.mm.default,
    _aten.bmm.default: _aten.bmm.default,
}


@dataclass(frozen=True)
class LeftSide:
    """How products by a matrix round their left side to int8, as MatMulNBits does, or each row whole.

    Args:
        start: Offset of the matrix in its storage, in elements.
        stop: End of the matrix in its storage, in elements.
        block: Columns that share a scale; 0 for all of a row.
        order: The column at each position, (columns,), where they are sorted before; None where they are not.
    """

    start: int
    stop: int
    block: int
    order: Tensor | None = None


@dataclass(frozen=True)
class Preparation:
    """Preparation of weights before a package rounded them.

    Args:
        importance: Importance of columns.
        smoothing: Smoothing by parameter.
    """

    importance: Importance = field(default_factory=dict)
    smoothing: Smoothing = field(default_factory=Smoothing)

    @staticmethod
    def of(request: Mapping[str, Any]) -> "Preparation":
        """Return what a request to the reference names."""
        importance, smoothing = (
            Path(request[name]) if request.get(name) else None
            for name in ("importance", "smoothing")
        )
        return Preparation(load(importance), Smoothing.load(smoothing))


def smoothed(tensors: Mapping[str, Tensor], smoothing: Smoothing) -> dict[str, Tensor]:
    """Return those parameters that are smoothed, in new tensors.

    Args:
        tensors: Parameters by name; those without data are left out.
        smoothing: Smoothing by parameter.
    """
    return {
        name: torch.from_numpy(smoothing.apply(name, tensors[name].detach().float().numpy()))
        for name in smoothing.exponents
        if name in tensors and not tensors[name].is_meta
    }


def round_weights(
    model: nn.Module,
    matrices: Sequence[RoundedMatrix],
    orders: Orders | None = None,
    preparation: Preparation = Preparation(),
) -> dict[int, list[LeftSide]]:
    """Give weights the values that a package has, in place: smoothed, and rounded to its integers.

    Args:
        model: With the weights as they are.
        matrices: Matrices to round, except kept ones. Of tied weights only those uses that the package rounds.
        orders: Column orders of a quantized checkpoint.
        preparation: Preparation of the weights.

    Returns:
        By storage, the left sides of products by weights that the package multiplies by, for `Arithmetic`.
    """
    left_sides: dict[int, list[LeftSide]] = defaultdict(list)
    named = dict(model.named_parameters(remove_duplicate=False))
    for name, values in smoothed(named, preparation.smoothing).items():
        named[name].data = values
    parameters = [place_of(named, matrix.name) for matrix in matrices]
    last = {name: at for at, (name, _) in enumerate(parameters)}
    for at, (matrix, (name, number)) in enumerate(zip(matrices, parameters, strict=True)):
        # What is replaced by a rounded matrix is in memory no longer.
        parameter = named.pop(name) if last[name] == at else named[name]
        stored = parameter.data
        whole = stored.dim() == 2 and number is None
        weights = of_matrix(preparation.importance, matrix.name) if matrix.format.fitted else None
        if whole and not matrix.kept:
            stored = _round_uses(model, parameter, matrix, weights)
        parts = [stored] if whole else _parts(stored, matrix, number)
        if not whole and not matrix.kept:
            for at_part, part in enumerate(parts):
                own = weights if weights is None or weights.ndim == 1 else weights[at_part]
                part.copy_(_rounded(part, matrix, own))
        first = number or 0 if stored.dim() > 2 else 0
        for index, part in enumerate(parts if matrix.multiplied else [], first):
            order = order_of(orders or {}, name, index) if matrix.format.act_order else None
            start = int(part.storage_offset())
            left_sides[part.untyped_storage().data_ptr()].append(
                LeftSide(start, start + part.numel(), matrix.format.block, order)
            )
    return left_sides


def place_of(named: Mapping[str, nn.Parameter], name: str) -> tuple[str, int | None]:
    """Return a parameter's name, and the number in it of the matrix that is meant; None for all of it."""
    if name in named:
        return name, None
    stack, _, number = name.rpartition(".")
    return stack, int(number)


def _round_uses(
    model: nn.Module, parameter: nn.Parameter, matrix: RoundedMatrix, weights: Any
) -> Tensor:
    """Give a matrix's rounded values to those who hold it and whose use of it the package rounds."""
    fresh = nn.Parameter(_rounded(parameter.data, matrix, weights), requires_grad=False)
    for module in model.modules():
        rounds = matrix.gathered if isinstance(module, nn.Embedding) else matrix.multiplied
        for name, held in module._parameters.items():
            if held is parameter and rounds:
                module._parameters[name] = fresh
    return fresh.data


def _parts(stored: Tensor, matrix: RoundedMatrix, number: int | None) -> Sequence[Tensor]:
    """Return views of a stack's matrices: all of them, or the one of that number, or from that row on."""
    if number is None:
        return list(stored)
    if stored.dim() > 2:
        return [stored[number]]
    return [stored[number : number + (matrix.columns if matrix.input_major else matrix.rows)]]


def compute_in_float64(model: Any) -> None:
    """Widen a model's weights, in place, and leave out what insists on float32.

    Args:
        model: Model of transformers, in float32.
    """
    model.double()
    for module in model.modules():
        if hasattr(module, "reorder_and_upcast_attn"):  # of GPT-2: the same product, in float32
            module.reorder_and_upcast_attn = False


class Widest(TorchFunctionMode):
    """Gives float64 to operators that refuse to be given it beside float32, to which a model's own code keeps."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            dtypes = {
                leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
            }
            if not dtypes >= {torch.float32, torch.float64}:
                raise
            args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs or {}))
            return func(*args, **kwargs)


def _widened(values: Tensor) -> Tensor:
    return values.double() if values.dtype is torch.float32 else values


@contextmanager
def in_float16(model: nn.Module) -> Iterator[None]:
    """Let a model compute as transformers does when it is loaded in float16, for a while."""
    wide = {name: parameter.data for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data = parameter.data.half()
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.data = wide[name]


def round_matrices_to_float16(model: nn.Module, matrices: Sequence[RoundedMatrix]) -> None:
    """Round weights to float16, in place, as programs for a device hold them.

    Args:
        model: With the weights of `matrices` rounded already.
        matrices: Matrices in another format, which stay, as vectors do.
    """
    named = dict(model.named_parameters())
    stored = {place_of(named, matrix.name)[0] for matrix in matrices}
    for name, parameter in named.items():
        if parameter.dim() > 1 and name not in stored:
            parameter.data.copy_(
                torch.from_numpy(microscaling.to_float16_and_back(parameter.data.numpy()))
            )


def _rounded(stored: Tensor, matrix: RoundedMatrix, weights: Any) -> Tensor:
    """Return a matrix after its storage, rounded piece by piece where its blocks lie in rows."""
    values = stored.T if matrix.input_major else stored
    rows = max(1, _PIECE // values.shape[-1]) if matrix.format.axis == -1 else len(values)
    rounded = torch.empty(values.shape)
    for source, target in zip(values.split(rows), rounded.split(rows), strict=True):
        piece = round_trip(source.contiguous().numpy(), matrix.format, weights)
        target.copy_(torch.from_numpy(piece))
    return rounded.T.contiguous() if matrix.input_major else rounded


class Arithmetic(TorchDispatchMode):
    """Computes matrix products in another way.

    Args:
        left_sides: Rounding of the left side of products to int8, by storage of their weights.
        halved: Compute every product as the sum of two halves: as right as in one go, but not the same.
    """

    def __init__(
        self, left_sides: Mapping[int, Sequence[LeftSide]] = MappingProxyType({}), *, halved: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left_sides, self._halved = left_sides, halved

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _PRODUCTS or kwargs:
            return func(*args, **(kwargs or {}))
        *bias, left, right = args
        for side in self._left_sides.get(right.untyped_storage().data_ptr(), ()):
            if side.start <= right.storage_offset() < side.stop:
                left = _to_int8_and_back(left, side)
                break
        if not self._halved:
            return func(*bias, left, right)
        multiply, half = _PRODUCTS[func], left.shape[-1] // 2
        product = multiply(left[..., :half], right[..., :half, :])
        product = product + multiply(left[..., half:], right[..., half:, :])
        return bias[0] + product if bias else product


def _to_int8_and_back(values: Tensor, side: LeftSide) -> Tensor:
    columns = values.shape[-1]
    block = side.block or columns
    if side.order is not None:
        values = values[..., side.order]
    padded = nn.functional.pad(values, (0, -columns % block)) if columns % block else values
    blocks = padded.unflatten(-1, (-1, block))
    scale: Tensor = blocks.abs().amax(-1, keepdim=True) / _INT8_MAX
    rounded: Tensor = torch.round(blocks / scale.where(scale > 0, 1.0)) * scale
    restored = rounded.flatten(-2)[..., :columns]
    return restored if side.order is None else restored[..., torch.argsort(side.order)]
