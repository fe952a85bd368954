# SPDX-License-Identifier: Apache-2.0
"""Damage to Hugging Face's model, which a comparison must notice: heads scaled or swapped, positions moved, and so on.

Only the reference process imports this. `HEADS` are tried from the slightest on, until each stage notices one. A
`Fault` is what one stage of the ladder is there for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from qeff_zoo.checkpoint.sentence_transformers.steps import MODULES
from qeff_zoo.validation.trial.faults import Fault

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_MATRICES = (nn.Linear, Conv1D, nn.Conv1d)
_PARTS = 2  # of the channels of a model without heads
_COLORS = 3


@dataclass(frozen=True, kw_only=True)
class HeadDamage:
    """Change to the heads of one mixer of tokens (attention, or what stands in its place).

    Args:
        words: The change, with `{heads}` and `{last}` for the number of heads and of the last one.
        change: The heads of the mixer's output, in order -> the damaged ones.
        in_last: Whether the last mixer is damaged; else the first.
    """

    words: str
    change: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    in_last: bool = False


def _scaled(times: float) -> HeadDamage:
    return HeadDamage(
        words=f"head 0 of {{heads}} times {times:g}",
        change=lambda heads: [heads[0] * times, *heads[1:]],
        in_last=True,
    )


SWAPPED = HeadDamage(
    words="heads 0 and {last} swapped",
    change=lambda heads: [heads[-1], *heads[1:-1], heads[0]],
)
REVERSED = HeadDamage(
    words="all {heads} heads in reverse",
    change=lambda heads: heads[::-1],
)
#: From the slightest to the grossest.
HEADS = (_scaled(1.01), _scaled(1.05), _scaled(1.25), _scaled(-1), SWAPPED, REVERSED)


@contextmanager
def damaged(models: Sequence[Any], damage: HeadDamage = SWAPPED) -> Iterator[str]:
    """Change the heads of a mixer of each model for a while; yields the change in words.

    Args:
        models: Models of transformers; for an image-text model, both halves.
        damage: Change to make.
    """
    with ExitStack() as stack:
        yield " and ".join(stack.enter_context(_damaged(model, damage)) for model in models)


@contextmanager
def _damaged(model: Any, damage: HeadDamage) -> Iterator[str]:
    config = model.config.get_text_config()
    layers = getattr(config, "per_layer_config", None)
    # Which need not have as many heads each; of convolutions there are stages, and no number of layers.
    if layers is not None and hasattr(config, "num_hidden_layers"):
        config = layers[-1 if damage.in_last else 0]
    count = getattr(config, "num_attention_heads", 0) or getattr(config, "num_heads", 0) or _PARTS
    if isinstance(count, list | tuple):  # by stage
        count = count[-1 if damage.in_last else 0]
    beside = config is not model.config and hasattr(model, "get_decoder")
    part = model.get_decoder() if beside else model
    name, projection = _mixer_output(part, int(count), in_last=damage.in_last)
    words = f"{damage.words.format(heads=count, last=int(count) - 1)} before {name}"
    axis = 1 if isinstance(projection, _CONVOLUTIONS) else -1

    def changed(values: Tensor) -> Tensor:
        return torch.cat([*damage.change(values.chunk(int(count), axis))], axis)

    # Whose weight a model may multiply by without calling it, or read without a product.
    if type(projection) is nn.Linear or type(projection) is nn.Embedding:
        weight, right = projection.weight.data, projection.weight.data.clone()
        weight.copy_(changed(right))  # in place, by which `Arithmetic` knows it
        try:
            yield words
        finally:
            weight.copy_(right)
        return
    handle = projection.register_forward_pre_hook(lambda _, args: (changed(args[0]),))
    try:
        yield words
    finally:
        handle.remove()


def _is_of_model(path: str) -> bool:
    """Return whether a module is of the model itself, not of the modules after an encoder."""
    return path.partition(".")[0] != MODULES


def _mixer_output(model: Any, heads: int, *, in_last: bool) -> tuple[str, nn.Module]:
    """Return the layer that joins the heads: the last matrix of the first or last attention, or of its substitute."""
    modules = list(model.named_modules())
    width = getattr(model.config.get_text_config(), "hidden_size", None)
    attentions = [item for item in modules if type(item[1]).__name__.endswith("Attention")]
    # A whole layer may have that in its name, and ends with a matrix of its MLP.
    layers = [item for item in modules if "Attention" in type(item[1]).__name__]
    mixers = [item for item in modules if hasattr(item[1], "layer_idx")]
    parts = [_outermost(attentions), attentions, layers, mixers]
    if in_last:
        parts, modules = [found[::-1] for found in parts], modules[::-1]
    for path, module in (item for found in parts for item in found):
        within = [item for item in module.named_modules() if isinstance(item[1], _MATRICES)]
        # Those of its own, not of what chooses its keys.
        matrices = [item for item in within if "." not in item[0]] or within
        # It returns what the model adds to its tokens; a gate behind it does not.
        whole = [item for item in matrices if _outputs(item[1]) == width]
        for name, layer in (whole or matrices)[-1:]:
            if heads > 1 and _inputs(layer) % heads == 0:
                return f"{path}.{name}", layer
    # What has convolutions alone mixes pixels in one that does not read colors.
    for path, module in modules:
        if isinstance(module, nn.Conv2d) and module.in_channels > _COLORS:
            return path, module
    # A table of vectors alone mixes no tokens; its values are two parts.
    owners = [
        item for item in modules if [*item[1].parameters(recurse=False)] and _is_of_model(item[0])
    ]
    if owners and all(isinstance(module, nn.Embedding) for _, module in owners):
        path, module = owners[0]
        return path, module
    raise ValueError(f"{type(model).__name__} has no attention with several heads to damage.")


def _outermost(modules: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Leave out modules within others of the list."""
    paths = tuple(f"{path}." for path, _ in modules)
    return [(path, module) for path, module in modules if not path.startswith(paths)]


def _inputs(layer: Any) -> int:
    if isinstance(layer, Conv1D):
        return int(layer.nx)
    return int(layer.in_channels if isinstance(layer, nn.Conv1d) else layer.in_features)


def _outputs(layer: Any) -> int:
    if isinstance(layer, Conv1D):
        return int(layer.nf)
    return int(layer.out_channels if isinstance(layer, nn.Conv1d) else layer.out_features)


@contextmanager
def narrow_window(model: Any) -> Iterator[None]:
    """Take one token from a model's sliding windows for a while."""
    configs = [model.config.get_text_config()]
    configs += [*(getattr(configs[0], "per_layer_config", None) or ())]
    holders = [one for one in (*configs, *model.modules()) if _window(one)]
    for holder in holders:
        holder.sliding_window -= 1
    try:
        yield
    finally:
        for holder in holders:
            holder.sliding_window += 1


def _window(holder: Any) -> int:
    window = holder.__dict__.get("sliding_window")
    return window if isinstance(window, int) else 0


def inputs_of(
    fault: Fault, inputs: Mapping[str, Tensor], starts: Sequence[int]
) -> dict[str, Tensor]:
    """Return the inputs of a call with a fault.

    Args:
        fault: With `kind` "position" or "extra".
        inputs: `input_ids` and `attention_mask`, (batch, width), padded at the end.
        starts: First moved position of each row.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    if fault.kind == "extra":
        more = torch.full_like(ids[:, :1], fault.token), torch.ones_like(mask[:, :1])
        return {
            "input_ids": torch.cat([more[0], ids], 1),
            "attention_mask": torch.cat([more[1], mask], 1),
        }
    positions = torch.arange(ids.shape[1])[None].repeat(len(ids), 1)
    moved = positions >= torch.tensor(starts)[:, None]
    return {**inputs, "position_ids": positions + moved}
