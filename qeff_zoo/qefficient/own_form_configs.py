# SPDX-License-Identifier: Apache-2.0
"""Configurations of checkpoints in the form of their authors' code, by the names of their config.json.

transformers' class of such a model has other names, see `Recipe.alias`; users' scripts have those of the file.
"""

import json
from collections.abc import Mapping
from typing import Any

from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.checkpoint.opening import Checkpoint

#: End of the names of parts of a configuration.
_PART = "_config"


def content_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the content of config.json of a checkpoint in its authors' form; None for transformers' form.

    Args:
        checkpoint: Opened checkpoint.
    """
    if not checkpoint.needs_remote_code:
        return None
    raw = read_json(checkpoint.companions["config.json"])
    return None if raw == checkpoint.config else raw


def parsed(content: Mapping[str, Any]) -> Any:
    """Return a configuration whose attributes are the fields of a config.json, and those of its parts.

    Args:
        content: Content of config.json, or of a part.
    """
    from transformers import PreTrainedConfig

    fields = {
        name: parsed(value) if name.endswith(_PART) and isinstance(value, Mapping) else value
        for name, value in content.items()
    }
    model_type = fields.pop("model_type", "")
    kind = type("OwnFormConfig", (PreTrainedConfig,), {"model_type": model_type})
    return kind(**fields)


def fields_of(content: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the values that a configuration has for the fields of a config.json; its class may add others.

    Args:
        content: Content of config.json.
        config: Configuration of the same form.
    """
    fields: dict[str, Any] = _within(content, json.loads(config.to_json_string(use_diff=False)))
    return fields


def _within(content: Any, found: Any) -> Any:
    if not (isinstance(content, Mapping) and isinstance(found, Mapping)):
        return found
    return {name: _within(value, found.get(name, value)) for name, value in content.items()}


def place_of_depth(content: Mapping[str, Any], text: Any, field: str) -> str:
    """Return the dotted name of the language model's number of layers.

    Args:
        content: Content of config.json.
        text: Configuration of the language model, as transformers parses it.
        field: Name of the field.
    """
    if field in content:
        return field

    def likeness(name: str) -> int:
        fields = content[name].items()
        return sum(getattr(text, field, None) == value for field, value in fields)

    parts = [name for name, value in content.items() if isinstance(value, Mapping)]
    return f"{max(parts, key=likeness)}.{field}"
