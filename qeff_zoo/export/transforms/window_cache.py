# SPDX-License-Identifier: Apache-2.0
"""Sliding-window layers retain keys and values of their window only, written modulo its size."""

from typing import Any

from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.retained_state import Windows

_MARK = "_qeff_zoo_window"


def apply(model: Any) -> int:
    """Mark the attention of every sliding-window layer.

    Args:
        model: Model whose config has `sliding_window`, and `layer_types` if only some layers are sliding.

    Returns:
        Number of layers marked.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    marked = set()
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if layer is None or not window or "Attention" not in type(module).__name__:
            continue
        if kinds is None or kinds[layer] == "sliding_attention":
            setattr(module, _MARK, window)
            marked.add(layer)
    return len(marked)


def keep_whole(model: Any) -> None:
    """Let sliding-window layers retain keys and values of every position, for readers by position."""
    for module in model.modules():
        vars(module).pop(_MARK, None)


def windows_of(model: Any) -> Windows:
    """Return the window of every marked layer, by its index."""
    return {
        plain(module.layer_idx): getattr(module, _MARK)
        for module in model.modules()
        if hasattr(module, _MARK)
    }
