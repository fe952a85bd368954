# SPDX-License-Identifier: Apache-2.0
"""The kernels seam: transformers' forward of state-space and linear-attention layers with our recurrences in it.

transformers calls the scans of these layers through module-level functions that a kernel library may replace. Here they
become the semantic ops `LinearRecurrence` and `DeltaRecurrence`, which start from the retained state at any length and
skip padding. Only the changed modules use them: their forward gets its own namespace.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.modules import give, rebound
from qeff_zoo.export.transforms.retained_state import RetainedState


def apply(model: nn.Module) -> int:
    """Change every module whose forward calls one of the kernels.

    Args:
        model: Model, changed in place.

    Returns:
        Number of modules changed.
    """
    mixers = [module for module in model.modules() if kernels_of(module)]
    for mixer in mixers:
        give(mixer, _forward)
    return len(mixers)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the class's own forward, with kernels for this call's states."""
    given = [*args, *kwargs.values()]
    cache = next((value for value in given if isinstance(value, RetainedState)), None)
    if cache is None:
        return type(self).forward(self, *args, **kwargs)
    calls = _Calls(cache, plain(self.layer_idx))
    own = {name: getattr(calls, _KERNELS[name]) for name in kernels_of(self)}
    return rebound(type(self).forward, **own)(self, *args, **kwargs)


def kernels_of(module: nn.Module) -> list[str]:
    """Return transformers' names of the kernels that a module's own forward calls."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return [name for name in _KERNELS if code is not None and name in code.co_names]


class _Calls:
    """Kernels of one layer in one call, with the signatures of transformers.

    Args:
        cache: Cache with their states.
        layer: Index of the layer.
    """

    def __init__(self, cache: RetainedState, layer: int) -> None:
        self._valid = cache.position_ids >= 0  # (batch, seq)
        self._state = cache.before(f"recurrent_state.{layer}")
        self._head = 0

    def _initial(self, like: Tensor, *shape: int) -> Tensor:
        if self._state is None:
            return like.new_zeros(like.shape[0], *shape)
        if self._state.dim() == len(shape) + 1:
            return self._state
        self._head += 1  # a kernel call for each head
        return self._state[:, self._head - 1]

    def selective_scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803 -- transformers' names
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        D: Tensor | None = None,  # noqa: N803
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> Any:
        """Mamba: hidden_states and dt (batch, channels, seq), A (channels, state), B and C (batch, state, seq)."""
        step = dt if delta_bias is None else dt + delta_bias[:, None]
        step = nn.functional.softplus(step) if delta_softplus else step
        step = (step * self._valid[:, None]).transpose(1, 2)  # (batch, seq, channels)
        log_decay = step[..., None] * A  # (batch, seq, channels, state)
        key, query = B.transpose(1, 2)[:, :, None], C.transpose(1, 2)[:, :, None]
        value = (step * hidden_states.transpose(1, 2))[..., None]
        state = self._initial(hidden_states, *A.shape, 1)
        output, last = torch.ops.qeff_zoo.linear_recurrence(state, log_decay, key, value, query)
        output = output[..., 0].transpose(1, 2)
        output = output if D is None else output + hidden_states * D[:, None]
        output = output if z is None else output * nn.functional.silu(z)
        return (output, last) if return_last_state else output

    def state_space_scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        chunk_size: int,
        D: Tensor | None = None,  # noqa: N803
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **_: Any,
    ) -> Any:
        """Mamba 2.

        hidden_states (batch, seq, heads, head_dim), dt (batch, seq, heads), A (heads), B and C (batch, seq, groups,
        state).
        """
        step = dt if dt_bias is None else dt + dt_bias
        step = nn.functional.softplus(step) if dt_softplus else step
        step = step.clamp(*dt_limit) * self._valid[..., None]
        log_decay = (step * A)[..., None]
        heads, width = hidden_states.shape[2:]
        value = hidden_states * step[..., None]
        state = self._initial(hidden_states, heads, B.shape[3], width)
        output, last = torch.ops.qeff_zoo.linear_recurrence(state, log_decay, B, value, C)
        output = output if D is None else output + hidden_states * D[:, None]
        return (output, last) if return_final_states else output

    def delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Gated delta rule.

        query and key (batch, seq, key heads, K), value (batch, seq, heads, V), log decay g (batch, seq, heads) or, for
        each key column, (batch, seq, heads, K), rate beta (batch, seq, heads).
        """
        if use_qk_l2norm_in_kernel:
            query, key = (
                item * torch.rsqrt((item * item).sum(-1, keepdim=True) + 1e-6)
                for item in (query, key)
            )
        query = query * query.shape[-1] ** -0.5
        log_decay = (g if g.dim() == 4 else g[..., None]) * self._valid[..., None, None]
        state = self._initial(value, value.shape[2], key.shape[3], value.shape[3])
        rate = beta * self._valid[..., None]
        result: tuple[Tensor, Tensor] = torch.ops.qeff_zoo.delta_recurrence(
            state, log_decay, key, value, query, rate
        )
        return result


#: Our methods by transformers' names of kernels for whole sequences.
_KERNELS: Mapping[str, str] = {
    "mamba_selective_scan": "selective_scan",
    "mamba2_chunk_scan": "state_space_scan",
    "torch_chunk_gated_delta_rule": "delta_rule",
    "chunk_kimi_delta_attention": "delta_rule",
}
