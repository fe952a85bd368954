# SPDX-License-Identifier: Apache-2.0
"""HF config -> module on the meta device: transformers' own code, no weights, every buffer real."""

import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import init_empty_weights
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, PreTrainedModel

from qeff_zoo import contract
from qeff_zoo.checkpoint.config import parsed_model_config
from qeff_zoo.checkpoint.config_faults import refusals_of
from qeff_zoo.checkpoint.files import COMPONENTS
from qeff_zoo.errors import ExportError
from qeff_zoo.export.transforms import encoder_attention, rope
from qeff_zoo.export.transforms.modules import language_model
from qeff_zoo.recipe import Recipe

from . import architectures, transforms

_LARGE = 1 << 20  # elements


def load_meta(
    config: Mapping[str, Any],
    recipe: Recipe,
    *,
    rope_factors: str | None = None,
    untied: Collection[str] = (),
) -> Any:
    """Build the recipe's model without weights, and apply its transforms.

    Args:
        config: Raw config.json.
        recipe: Recipe of the config's `model_type`.
        rope_factors: Factors of longrope, see `rope.follow_context`.
        untied: Tied parameters with their own values, see `build_meta`.

    Returns:
        A `PreTrainedModel` in evaluation mode: parameters in float32 of one element each (see `hollow`), buffers real.

    Raises:
        CheckpointError: transformers rejects the config.
        ExportError: A buffer has no value, or a transform misses its count.
    """
    model = build_meta(config, recipe.task, untied)
    if COMPONENTS in config:
        hollow(model)
        return model
    encoder_attention.implement(model)
    rope.follow_context(model, rope_factors)
    hollow(model)
    for transform in recipe.transforms:
        transforms.apply(transform, language_model(model))
    return model


def build_meta(config: Mapping[str, Any], task: str, untied: Collection[str] = ()) -> Any:
    """Build transformers' model for a task without weights, untransformed.

    Args:
        config: Raw config.json.
        task: Hub pipeline tag.
        untied: Tied parameters with their own values; names of other models are ignored.
    """
    if COMPONENTS in config:
        return _build_pipeline(config)
    raw = {
        key: value
        for key, value in config.items()
        if key not in {"quantization_config", "auto_map"}
    }
    architectures.register(config["model_type"])
    with refusals_of(config):
        kind = CONFIG_MAPPING[config["model_type"]]
        # JSON has no infinity; transformers writes it in its own format.
        parsed = parsed_model_config(kind.from_dict(kind._decode_special_floats(raw)))
    if (
        contract.find(task).role == "encoder"
    ):  # of two halves the encoder alone, as in most of its classes
        parsed.is_encoder_decoder = False
    parsed.add_cross_attention = (
        False  # of a whole model: no encoder is beside it, so transformers skips it
    )
    without_values = init_empty_weights(include_buffers=False)
    with _LargeOnMeta(), without_values, _initialized_buffers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make = contract.auto_class(task, parsed).from_config
        with refusals_of(config):
            model = make(parsed, attn_implementation="eager", dtype=torch.float32)
    model = model.eval()
    model.tie_weights()
    _untie(model, untied)
    _require_buffers(model)
    return model


def _build_pipeline(config: Mapping[str, Any]) -> Any:
    """Build the components of a diffusers pipeline without weights."""
    from . import pipelines

    without_values = init_empty_weights(include_buffers=False)
    with _LargeOnMeta(), without_values, _initialized_buffers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = pipelines.build(config)
    _require_buffers(model)
    return model


def _require_buffers(model: Any) -> None:
    """Refuse a model with a buffer that has no value."""
    empty = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if empty:
        raise ExportError(
            f"Buffers {empty[:5]} of {type(model).__name__} have no value on the meta device, and no checkpoint does. "
            f"Expected every buffer to be computed when the module is built."
        )


def _untie(model: Any, names: Collection[str]) -> None:
    for name in model.all_tied_weights_keys.keys() & {*names}:
        path, _, parameter = name.rpartition(".")
        shared = model.get_parameter_or_buffer(name)
        own = torch.nn.Parameter(torch.empty_like(shared), requires_grad=False)
        setattr(model.get_submodule(path), parameter, own)


@contextmanager
def _initialized_buffers() -> Iterator[None]:
    """Initialize modules with buffers alone: of meta parameters, that takes most of the time for nothing."""
    kind: Any = PreTrainedModel
    initialize = kind._initialize_weights

    def initialize_buffers(model: Any, module: Any, *more: Any) -> None:
        if module._buffers:
            initialize(model, module, *more)

    kind._initialize_weights = initialize_buffers
    try:
        yield
    finally:
        kind._initialize_weights = initialize


class _LargeOnMeta(TorchFunctionMode):
    """Creates large empty tensors on the meta device at once: `init_empty_weights` moves parameters only afterwards."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None and math.prod(_size(args)) > _LARGE:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _size(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(args[0]) if args and isinstance(args[0], tuple | list) else args


def hollow(model: Any) -> None:
    """Turn meta parameters into CPU tensors with one element at every index, in place.

    A trace on the meta device loses the constants that a forward creates on the device of its inputs; on the CPU they
    have values, and parameters of this kind still take no memory.
    """
    parameters: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in parameters:
                element = torch.empty((), dtype=parameter.dtype)
                parameters[id(parameter)] = torch.nn.Parameter(
                    element.expand(parameter.shape), requires_grad=False
                )
            setattr(module, name, parameters[id(parameter)])
