# SPDX-License-Identifier: Apache-2.0
"""Padding is zeroed in models that read neighbouring tokens, as if the text ended there.

transformers keeps the states of padding there, so that a result depends on the other rows of its batch.
"""

from typing import Any

from torch import Tensor, nn

#: Attribute of the base model with the mask of the running call.
_MASK = "_qeff_zoo_tokens"


def apply(model: Any, names: list[str]) -> int:
    """Zero padding in the outputs of modules; for convolutions in their inputs.

    Args:
        model: Model, changed in place; its calls have `attention_mask`, (batch, seq), 1 for a token.
        names: Suffixes of modules' names. Modules return (batch, seq, channels), convolutions read (batch, channels,
            seq).

    Returns:
        Number of modules changed.
    """
    base = model.base_model

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        setattr(base, _MASK, kwargs["attention_mask"])

    def clear_input(_: nn.Module, args: tuple[Tensor]) -> Tensor:
        cleared: Tensor = args[0] * getattr(base, _MASK)[:, None].to(args[0].dtype)
        return cleared

    def clear_output(_: nn.Module, args: tuple[Any, ...], given: Tensor) -> Tensor:
        cleared: Tensor = given * getattr(base, _MASK)[:, :, None].to(given.dtype)
        return cleared

    base.register_forward_pre_hook(note, with_kwargs=True)
    chosen = [
        submodule for name, submodule in model.named_modules() if name.rpartition(".")[2] in names
    ]
    for module in chosen:
        if isinstance(module, nn.Conv1d):
            module.register_forward_pre_hook(clear_input)
        else:
            module.register_forward_hook(clear_output)
    return len(chosen)
