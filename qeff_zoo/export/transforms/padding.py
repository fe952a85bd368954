# SPDX-License-Identifier: Apache-2.0
"""Padding becomes zeros where a model reads neighbouring tokens, as if the text ended there.

transformers leaves there what became of padding's embedding, so that an answer depends on what it is batched with.
"""

from typing import Any

from torch import Tensor, nn

#: Where the base model keeps the mask of the call that runs.
_MASK = "_qeff_zoo_tokens"


def apply(model: Any, names: list[str]) -> int:
    """Clear padding in what modules give; of a convolution in what it reads.

    Args:
        model: Changed in place; called with `attention_mask`, (batch, seq), 1 is a token.
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
    found = [one for name, one in model.named_modules() if name.rpartition(".")[2] in names]
    for module in found:
        if isinstance(module, nn.Conv1d):
            module.register_forward_pre_hook(clear_input)
        else:
            module.register_forward_hook(clear_output)
    return len(found)
