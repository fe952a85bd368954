# SPDX-License-Identifier: Apache-2.0
"""Configuration of a loaded model, as transformers parses it, and the cut checkpoint that a changed one selects.

A configuration with fewer layers selects the first layers of a checkpoint. Data types and implementations of attention
change nothing in a package. Every other difference is refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from qeff_zoo.checkpoint.cut import cut
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.errors import PlanError

from . import own_form_configs

#: Arguments of `from_pretrained` about the configuration.
ARGUMENTS = ("config", "num_hidden_layers")
#: Number of last layers that read the states of earlier ones.
_SHARING = "num_kv_shared_layers"
#: Numbers of layers, by their names in configurations.
_DEPTHS = frozenset(
    {
        *(
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "depth",
            "vt_num_hidden_layers",
        ),
        *("encoder_layers", "decoder_layers", "num_decoder_layers", _SHARING),
    }
)
#: Table by number of a label, not of a layer.
_LABELS = "id2label"
#: Fields without effect on a package; names with a leading underscore are transformers' own notes.
_WITHOUT_EFFECT = frozenset(
    {
        *("dtype", "torch_dtype", "attn_implementation", "use_cache", "transformers_version"),
        *("return_dict", "output_attentions", "output_hidden_states"),
    }
)


def parsed(config: Mapping[str, Any]) -> Any:
    """Return a configuration as transformers parses it.

    Args:
        config: Content of config.json.

    Raises:
        CheckpointError: transformers rejects it.
    """
    from transformers import CONFIG_MAPPING

    from qeff_zoo.checkpoint.config_faults import refusals_of
    from qeff_zoo.export import architectures

    architectures.register(config["model_type"])
    with refusals_of(config):
        kind = CONFIG_MAPPING[config["model_type"]]
        return kind.from_dict(kind._decode_special_floats(dict(config)))


def in_float32(checkpoint: Checkpoint) -> Any:
    """Return the configuration of a model in float32, QEfficient's default.

    Args:
        checkpoint: Opened checkpoint.

    Returns:
        The configuration as transformers parses it; that of a checkpoint in its authors' form has the file's names.
    """
    import torch

    content = own_form_configs.content_of(checkpoint)
    config = parsed(checkpoint.config) if content is None else own_form_configs.parsed(content)
    config.dtype = torch.float32
    return config


def differences(config: Any, other: Any) -> dict[str, Any]:
    """Return the fields in which a configuration differs from another: values of the other, by dotted names.

    Args:
        config: Configuration of transformers, or its content.
        other: The same.
    """
    return dict(_differences(_content(config), _content(other)))


def _differences(config: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    field = name.rpartition(".")[2]
    if field in _WITHOUT_EFFECT or field.startswith("_"):
        return
    if isinstance(config, Mapping) and isinstance(other, Mapping):
        for key in sorted({*config, *other}):
            where = f"{name}.{key}" if name else key
            yield from _differences(config.get(key), other.get(key), where)
    elif config != other:
        yield name, other


def _content(config: Any) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        config = json.loads(config.to_json_string(use_diff=False))
    return dict(config)


def selected(checkpoint: Checkpoint, config: Any, layers: Any) -> str | None:
    """Return the folder of the cut checkpoint that arguments of `from_pretrained` select; None for the whole model.

    Args:
        checkpoint: Opened checkpoint.
        config: Argument `config`; None for the checkpoint's own.
        layers: Argument `num_hidden_layers`; None for all.

    Raises:
        PlanError: The configuration differs in more than its number of layers, or the number is out of range.
    """
    if config is None and layers is None:
        return None
    own = parsed(checkpoint.config)
    if config is not None and not hasattr(config, "to_json_string"):
        raise PlanError(
            [
                f"`from_pretrained`: config is a {type(config).__name__}, expected a configuration of transformers, "
                "such as AutoConfig.from_pretrained returns. Give one, or leave it out."
            ]
        )
    written = own_form_configs.content_of(checkpoint)
    content = _content(own) if written is None else written
    changes = changes_of(checkpoint, own if config is None else config)
    _require_cut(content, changes)
    if layers is not None:
        changes |= {_depth_of(own, layers, written): layers}
    changes |= _following(content, changes)
    changes = {name: value for name, value in changes.items() if _at(content, name) != value}
    if not changes:
        return None
    new = _changed(checkpoint, changes) if written is None else _with(written, changes)
    return str(cut(checkpoint, new, _suffix(changes)))


def changes_of(checkpoint: Checkpoint, config: Any) -> dict[str, Any]:
    """Return the fields in which a configuration differs from a checkpoint's: its values by dotted names.

    Args:
        checkpoint: Opened checkpoint.
        config: Configuration of transformers' class; or of a class that the checkpoint's authors wrote.
    """
    own, written = parsed(checkpoint.config), own_form_configs.content_of(checkpoint)
    if written is None or isinstance(config, type(own)):
        return differences(own, config)
    return differences(written, own_form_configs.fields_of(written, config))


def require_unchanged(function: str, checkpoint: Checkpoint, config: Any) -> None:
    """Refuse changes of a configuration after its model was loaded.

    Args:
        function: Name of the called function.
        checkpoint: Opened checkpoint of the model.
        config: Configuration, as the user has it.

    Raises:
        PlanError: The configuration was changed; `num_key_value_heads` has an option of its own.
    """
    changes = changes_of(checkpoint, config)
    heads = [name for name in changes if name.endswith("num_key_value_heads")]
    if changes:
        advice = "Give kv_heads=N to `compile`" if heads else "Give config=… to `from_pretrained`"
        raise PlanError(
            [
                f"`{function}`: {', '.join(changes)} of the model's configuration was changed after it was loaded; "
                f"expected the configuration of the checkpoint. {advice}."
            ]
        )


def _require_cut(content: Any, changes: Mapping[str, Any]) -> None:
    """Refuse changes beyond fewer layers, and lists that are cut to their beginning."""
    others = [name for name, new in changes.items() if not _is_cut(name, _at(content, name), new)]
    if others:
        raise PlanError(
            [
                f"`from_pretrained`: {', '.join(others)} of config differs from the checkpoint's; expected another "
                "dtype, attn_implementation or number of layers alone. Write a folder with the changed config.json and "
                "the checkpoint's other files, and give that."
            ]
        )


def _is_cut(name: str, old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return new == old[: len(new)]
    is_depth = name.rpartition(".")[2] in _DEPTHS
    return is_depth and type(old) is int and type(new) is int and 0 <= new <= old


def _at(content: Any, name: str) -> Any:
    for key in name.split(".") if name else ():
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _depth_of(own: Any, layers: Any, written: Mapping[str, Any] | None) -> str:
    """Return the name of the number of layers of a language model or encoder; refuse a number out of range."""
    text = own if hasattr(own, "num_hidden_layers") else own.get_text_config()
    count = getattr(text, "num_hidden_layers", None)
    if text.is_encoder_decoder or type(count) is not int:
        raise PlanError(
            [
                f"`from_pretrained`: num_hidden_layers is {layers!r}, and a {own.model_type!r} model has no single "
                "number of layers. Give config=… with fewer layers in each part."
            ]
        )
    if type(layers) is not int or not 0 < layers <= count:
        raise PlanError(
            [
                f"`from_pretrained`: num_hidden_layers is {layers!r}, expected a number from 1 to {count}, the layers "
                "of the checkpoint. Correct it, or leave it out for all."
            ]
        )
    field = text.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    if written is not None:
        return own_form_configs.place_of_depth(written, text, field)
    part = next((name for name in own.sub_configs if getattr(own, name, None) is text), "")
    return f"{part}.{field}" if part else str(field)


def _following(content: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return further changes: lists with a value for each layer, and the layers that share states of earlier ones."""
    fields = dict[str, Any]()
    for name, layers in changes.items():
        part, _, field = name.rpartition(".")
        beside, count = _at(content, part), _at(content, name)
        if field not in _DEPTHS or field == _SHARING:
            continue
        new: dict[str, Any] = {
            key: value[:layers]
            for key, value in beside.items()
            if isinstance(value, list) and len(value) == count and "token" not in key
        }
        if shared := beside.get(_SHARING):  # the last layers
            new[_SHARING] = max(0, layers - (count - shared))
        fields |= {f"{part}.{key}" if part else key: value for key, value in new.items()}
    return {name: value for name, value in fields.items() if name not in changes}


def _changed(checkpoint: Checkpoint, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json with changes in the fields that it has."""
    content: dict[str, Any] = json.loads(json.dumps(checkpoint.config))
    wanted = _content(parsed(content))
    for name, value in changes.items():
        *parts, field = name.split(".")
        _at(wanted, ".".join(parts))[field] = value
        inner = _at(content, ".".join(parts))
        part = inner if isinstance(inner, dict) else content  # older files have no parts
        if field in part or field in _DEPTHS:
            part[field] = value
        if field in _DEPTHS and field != _SHARING:
            _drop_layers(part, value)
    derived = differences(wanted, parsed(content))
    if others := [
        name for name, new in derived.items() if not _follows(name, _at(wanted, name), new)
    ]:
        raise PlanError(
            [
                f"`from_pretrained`: a config.json with {_words(changes)} gives transformers another "
                f"{', '.join(others)} than the checkpoint's first layers have. Choose another number, or give "
                "the folder of a model that transformers cut and saved."
            ]
        )
    return content


def _with(written: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json in its authors' form with changes."""
    content: dict[str, Any] = json.loads(json.dumps(written))
    for name, value in changes.items():
        part, _, field = name.rpartition(".")
        _at(content, part)[field] = value
    return content


def _drop_layers(part: dict[str, Any], layers: int) -> None:
    """Drop the entries of further layers from tables by number of a layer."""
    for name, value in part.items():
        numbered = isinstance(value, dict) and value and all(str(key).isdecimal() for key in value)
        if numbered and name != _LABELS:
            part[name] = {key: entry for key, entry in value.items() if int(key) < layers}


def _follows(name: str, old: Any, new: Any) -> bool:
    """Return whether a field of fewer layers has a value that follows from their number, and changes none of them."""
    field = name.rpartition(".")[2]
    if isinstance(old, list) and isinstance(new, list):
        return all(isinstance(one, int) for one in old) and {*new} <= {*old}  # numbers of layers
    if new is None:
        return field.isdecimal()
    return not isinstance(old, list | dict) and field not in _DEPTHS


def _words(changes: Mapping[str, Any]) -> str:
    numbers = {name: value for name, value in changes.items() if not isinstance(value, list)}
    return ", ".join(f"{name}={value}" for name, value in numbers.items())


def _suffix(changes: Mapping[str, Any]) -> str:
    """Return the end of a cut checkpoint's name: numbers of layers, those of encoders with their part."""
    words = []
    for name, value in changes.items():
        part, _, field = name.rpartition(".")
        if field in _DEPTHS and field != _SHARING:
            kind = (
                part.rpartition(".")[2]
                .removesuffix("_config")
                .removeprefix("text")
                .removeprefix("llm")
            )
            words.append(f"-{value}-{kind}-layers" if kind else f"-{value}-layers")
    return "".join(words) or "-cut"


class ModelView:
    """Stand-in for QEfficient's PyTorch module, which does not exist here.

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def prepare_inputs_for_generation(
        self, inputs: Any, prefill_seq_len: int = 1, batch_size: int = 1
    ) -> Any:
        """Return the output of a processor for `generate`, or for calls of a session.

        Args:
            inputs: Output of the processor of the checkpoint.
            prefill_seq_len: Width of a prefill call.
            batch_size: QEfficient's argument, without effect.

        Returns:
            The same, with `position_ids` if rotary positions have several axes, see `with_positions`.
        """
        from qeff_zoo.qefficient.generation.positions import with_positions

        return with_positions(inputs, self.config, prefill_seq_len)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"The model has no PyTorch module with {name!r}; expected `config` or `prepare_inputs_for_generation`. For "
            "tensors, load the checkpoint with transformers; for other heads, give kv_heads=N to `compile`."
        )
