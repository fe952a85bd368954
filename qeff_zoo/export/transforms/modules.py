# SPDX-License-Identifier: Apache-2.0
"""Modules of a Hugging Face model: search by class, replacement of methods, and functions with rebound globals."""

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any


def of_class(model: Any, *names: str) -> list[Any]:
    """Return the modules whose class has one of these names."""
    return [module for module in model.modules() if type(module).__name__ in names]


def give(module: Any, method: Callable[..., Any], name: str = "forward") -> None:
    """Replace a method of a module, instead of that of its class."""
    setattr(module, name, MethodType(method, module))


def rebound(function: Any, **names: Any) -> FunctionType:
    """Return a copy of a function: the same code, without decorators, with other values of some globals."""
    plain = inspect.unwrap(function)
    known = {**plain.__globals__, **names}
    copy = FunctionType(
        plain.__code__, known, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    return copy


def language_model(model: Any) -> Any:
    """Return the part of a model that reads embedded text; the whole model if it has no such part."""
    composite = model.config.get_text_config() is not model.config
    return model.get_decoder() if composite and hasattr(model, "get_decoder") else model


def reader_of_tokens(model: Any) -> Any:
    """Return the model whose forward takes tokens alone: the inner one if the whole requires pixels in every call."""
    pixels = inspect.signature(model.forward).parameters.get("pixel_values")
    requires_pixels = pixels is not None and pixels.default is inspect.Parameter.empty
    return model.get_decoder() if requires_pixels else model


def vision_tower(model: Any) -> Any:
    """Return the vision encoder of a model; the whole model if it has no such part."""
    tower = model.get_encoder(modality="image")
    if tower is not model or not hasattr(model.config, "vision_config"):
        return tower
    return with_config(model, model.config.vision_config)


def video_tower(model: Any) -> Any:
    """Return the encoder of video frames: the vision encoder unless another part is named."""
    return getattr(model.base_model, "video_tower", None) or vision_tower(model)


def with_config(model: Any, config: Any) -> Any:
    """Return the outermost part of a model with a given part of its config; the whole model without one."""
    parts = (module for module in model.modules() if getattr(module, "config", None) is config)
    return next(parts, model)
