# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model in a device's numerics: what its operators return is float16, weights and states are rounded.

Only the reference process imports this. It rounds as `qeff_zoo.targets.emulation.device` rounds a graph, of
transformers' own code: where that computes something in other steps than the graph does, roundings differ by as much.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import DynamicCache, EncoderDecoderCache

from qeff_zoo.graph import microscaling
from qeff_zoo.graph.numerics import MXINT8, DeviceNumerics, RoundedMatrix
from qeff_zoo.validation.reference.numerics import round_weights
from qeff_zoo.weights.quantization import round_trip

#: Of modules' class names: what devices compute as one operator, and what they read from tables.
_WHOLE = ("Norm", "Rotary")


@contextmanager
def computing_as(
    model: Any, numerics: DeviceNumerics, matrices: Sequence[RoundedMatrix] = ()
) -> Iterator[None]:
    """Let a model compute in a device's numerics for a while; its weights are rounded in place, and stay so.

    Args:
        model: Model of transformers, in float32.
        numerics: Numerics of the device.
        matrices: Weights that are multiplied by, and their format, as `emulation.device.matrices` returns them.
    """
    kept = {name for name, _ in model.named_parameters() if numerics.keeps(name)}
    round_weights(model, [matrix for matrix in matrices if matrix.name not in kept])
    for name, parameter in model.named_parameters():
        if name not in kept:  # of those that were rounded to less, nothing changes
            parameter.data.copy_(
                torch.from_numpy(microscaling.to_float16_and_back(parameter.data.numpy()))
            )
    rounding, handles = _Rounding(), []
    for path, module in model.named_modules():
        reads_kept = any(f"{path}.{name}" in kept for name in module._parameters)
        if reads_kept or any(part in type(module).__name__ for part in _WHOLE):
            handles.append(module.register_forward_pre_hook(rounding.pause))
            handles.append(module.register_forward_hook(rounding.resume(rounds=not reads_kept)))
    if numerics.states == "mxint8":
        handles.append(model.register_forward_pre_hook(_give_states, with_kwargs=True))
    try:
        with rounding:
            yield
    finally:
        for handle in handles:
            handle.remove()


def _float16(values: Tensor) -> Tensor:
    """Round to float16 with saturation."""
    if not values.is_floating_point():
        return values
    return values.clamp(-microscaling.FLOAT16_MAX, microscaling.FLOAT16_MAX).half().to(values.dtype)


class _Rounding(TorchDispatchMode):
    """Rounds what every operator returns, but within modules that pause it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pauses = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = [one.alias_info for one in func._schema.returns]
        if self._pauses or any(alias is not None and not alias.is_write for alias in aliases):
            return result  # a view shows what was rounded
        if any(aliases):
            return tree_map_only(Tensor, lambda one: one.copy_(_float16(one)), result)
        return tree_map_only(Tensor, _float16, result)

    def pause(self, module: nn.Module, args: Any) -> None:
        """Stop rounding: for a hook before a module."""
        self._pauses += 1

    def resume(self, *, rounds: bool) -> Any:
        """Return a hook after a module that goes on rounding.

        Args:
            rounds: Whether what the module returns is rounded.
        """

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            self._pauses -= 1
            return tree_map_only(Tensor, _float16, output) if rounds else output

        return hook


class _States(DynamicCache):
    """Keys and values as MXINT8 leaves them."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Retain new keys and values; return all of them."""
        keys, values = _mxint8(key_states), _mxint8(value_states)
        return super().update(keys, values, *args, **kwargs)


def _mxint8(states: Tensor) -> Tensor:
    return torch.from_numpy(round_trip(states.numpy(), MXINT8))


def _give_states(model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    states: Any = _States(config=model.config)
    if model.config.is_encoder_decoder:  # of cross-attention a device keeps float16
        states = EncoderDecoderCache(states, DynamicCache(config=model.config))
    return args, {**kwargs, "use_cache": True, "past_key_values": states}
