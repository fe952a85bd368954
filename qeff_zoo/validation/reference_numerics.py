# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model in other numerics: its weights rounded, its sums reordered, two of its heads swapped.

Only the reference process imports this. What is rounded or reordered is as right as the original
and shows how far right answers lie apart; what has its heads swapped is wrong and must be noticed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

from qeff_zoo.numerics import RoundedMatrix
from qeff_zoo.weights.quantization import round_trip

_INT8_MAX = 127
_MATRICES = (nn.Linear, Conv1D, nn.Conv1d)
_PARTS = 2  # of the channels of a model without heads
_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm.default: _aten.mm.default,
    _aten.addmm.default: _aten.mm.default,
    _aten.bmm.default: _aten.bmm.default,
}


def round_weights(model: nn.Module, matrices: Sequence[RoundedMatrix]) -> set[int]:
    """Give weights the values that a package's integers have, in place.

    Args:
        model: With the weights as they are.
        matrices: What to round. Of tied weights only the uses that the package rounds are.

    Returns:
        Storages of the weights that the package multiplies by, for `Arithmetic`.
    """
    multiplied: set[int] = set()
    named = dict(model.named_parameters(remove_duplicate=False))
    for matrix in matrices:
        parameter, number = _parameter(named, matrix.name)
        if parameter.dim() == 2 and number is None:
            stored = _round_uses(model, parameter, matrix)
        else:
            stored = parameter.data
            for part in _parts(stored, matrix, number):
                part.copy_(_rounded(part, matrix))
        if matrix.multiplied:
            multiplied.add(stored.untyped_storage().data_ptr())
    return multiplied


def _parameter(named: Mapping[str, nn.Parameter], name: str) -> tuple[nn.Parameter, int | None]:
    """Return a parameter, and the number in it of the matrix that is meant; None for all of it."""
    if name in named:
        return named[name], None
    stack, _, number = name.rpartition(".")
    return named[stack], int(number)


def _round_uses(model: nn.Module, parameter: nn.Parameter, matrix: RoundedMatrix) -> Tensor:
    """Give a matrix's rounded values to those who hold it and whose use of it the package rounds."""
    fresh = nn.Parameter(_rounded(parameter.data, matrix), requires_grad=False)
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
        model: Of transformers, in float32.
    """
    model.double()
    for module in model.modules():
        if hasattr(module, "reorder_and_upcast_attn"):  # of GPT-2: the same product, in float32
            module.reorder_and_upcast_attn = False


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


def _rounded(stored: Tensor, matrix: RoundedMatrix) -> Tensor:
    values = (stored.T if matrix.input_major else stored).contiguous().numpy()
    rounded = round_trip(values, matrix.format)
    return torch.from_numpy(rounded.T.copy() if matrix.input_major else rounded)


class Arithmetic(TorchDispatchMode):
    """Computes matrix products in another way.

    Args:
        rounded: Storages of the weights whose products round their left side to int8, as MatMulNBits does.
        block: Columns that share a scale there; None to round nothing.
        halved: Compute every product as the sum of two halves: as right as in one go, but not the same.
    """

    def __init__(self, rounded: set[int], block: int | None, *, halved: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounded = rounded if block else set()
        self._block, self._halved = block or 1, halved

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
        if right.untyped_storage().data_ptr() in self._rounded:
            left = _to_int8_and_back(left, self._block)
        if not self._halved:
            return func(*bias, left, right)
        multiply, half = _PRODUCTS[func], left.shape[-1] // 2
        product = multiply(left[..., :half], right[..., :half, :])
        product = product + multiply(left[..., half:], right[..., half:, :])
        return bias[0] + product if bias else product


def _to_int8_and_back(values: Tensor, block: int) -> Tensor:
    columns = values.shape[-1]
    padded = nn.functional.pad(values, (0, -columns % block)).unflatten(-1, (-1, block))
    scale: Tensor = padded.abs().amax(-1, keepdim=True) / _INT8_MAX
    rounded: Tensor = torch.round(padded / scale.where(scale > 0, 1.0)) * scale
    return rounded.flatten(-2)[..., :columns]


@contextmanager
def swapped_heads(model: Any) -> Iterator[str]:
    """Swap the first and the last head of the first mixer of tokens for a while; yields what was done."""
    config = model.config.get_text_config()
    layers = getattr(config, "per_layer_config", None)
    if layers is not None:  # which need not have as many heads each
        config = layers[0]
    heads = int(
        getattr(config, "num_attention_heads", 0) or getattr(config, "num_heads", 0) or _PARTS
    )
    name, projection = _mixer_output(model, heads)
    axis = 1 if isinstance(projection, nn.Conv1d) else -1

    def swap(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        first, *between, last = args[0].chunk(heads, axis)
        return (torch.cat([last, *between, first], axis),)

    handle = projection.register_forward_pre_hook(swap)
    try:
        yield f"heads 0 and {heads - 1} swapped before {name}"
    finally:
        handle.remove()


def _mixer_output(model: nn.Module, heads: int) -> tuple[str, nn.Module]:
    """Find the layer that joins the heads: the last matrix of the first attention, or of what stands in its place."""
    modules = list(model.named_modules())
    attentions = [item for item in modules if "Attention" in type(item[1]).__name__]
    # A whole layer may have that in its name, and ends with a matrix of its MLP.
    attentions.sort(key=lambda item: not type(item[1]).__name__.endswith("Attention"))
    mixers = [item for item in modules if hasattr(item[1], "layer_idx")]
    for path, module in [*attentions, *mixers]:
        within = [item for item in module.named_modules() if isinstance(item[1], _MATRICES)]
        # Those of its own, not of what chooses its keys.
        layers = [item for item in within if "." not in item[0]] or within
        if layers and heads > 1 and _inputs(layers[-1][1]) % heads == 0:
            return f"{path}.{layers[-1][0]}", layers[-1][1]
    raise ValueError(f"{type(model).__name__} has no attention with several heads to swap.")


def _inputs(layer: Any) -> int:
    if isinstance(layer, Conv1D):
        return int(layer.nx)
    return int(layer.in_channels if isinstance(layer, nn.Conv1d) else layer.in_features)
