# SPDX-License-Identifier: Apache-2.0
"""Tiny configuration of a model of several parts: sizes of a relative's, flags and scalings of the published config.

A relative's tiny configuration is awkward already: its sizes are taken for every field that both have. The other sizes
are those of `shrinking`, or of a field with the same published value.
"""

from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from typing import Any

from qeff_zoo import registry
from qeff_zoo.scaffold.shrinking import (
    SECTIONS,
    SIZES,
    awkward,
    is_unused,
    parse,
    sections_of,
    shrink,
)

#: First id of placeholder tokens, in a vocabulary of 257.
_FIRST_TOKEN = 200
_VOCABULARY = 257
#: Maximum of an integer that is a setting rather than a size.
_SMALL = 16
#: Fields of a whole image encoder that stay the default unless a relative sets them: without effect, or for positions.
_OF_ENCODER = ("out_indices", "out_features", "image_size")
_LAYERS, _FEWEST_LAYERS = ("_indexes", "_indices", "_layers", "_blocks"), 2
#: Sizes of encoders that may be multiples of a basic size.
_BASIC: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("intermediate_size",),
    "d_model": ("encoder_ffn_dim", "intermediate_size"),
    "patch_size": ("window_size",),
}
_TOKEN = ("_token_id", "_token_index")
#: Names of numbers of image tokens, fewer than those of patches.
_POOLED = ("tokens_per_image", "image_seq_length")
_USUAL_TOKENS = ("bos", "eos", "pad", "sep", "decoder_start", "forced_bos", "forced_eos", "cls")
#: Sizes of encoders of images and audio, beyond those of text models.
_SIZES: Mapping[str, Any] = {
    **SIZES,
    **dict.fromkeys(("depth", "encoder_layers", "num_layers"), 3),
    "decoder_layers": 4,
    **dict.fromkeys(("num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("embed_dim", "d_model", "out_hidden_size", "projection_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "d_ff"), 96),
    "num_mel_bins": 16,
    "image_size": 28,
    "patch_size": 7,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "num_position_embeddings": 16,
}


class Mix:
    """Tiny configuration, and the fields that it could not shrink.

    Args:
        config: Raw config.json of a real model.
        relative: Tiny configuration of the most similar recipe.
        proportional: Whether sizes of encoders stay multiples of the hidden size or the patch size, which some forwards
            require; otherwise they are numbers that no other size equals.

    Attributes:
        tiny: Arguments of the config class.
        text_type: `model_type` of the recipe whose tiny configuration the language model has; empty if it is mixed.
        text_key: Field of the config with that language model.
        kept: Names of the sizes that are as published, with dots between a part and its field.
    """

    def __init__(
        self, config: Mapping[str, Any], relative: Mapping[str, Any], *, proportional: bool = False
    ) -> None:
        self._proportional = proportional
        self.text_type = self.text_key = ""
        self.kept: list[str] = []
        taken = {value for key, value in relative.items() if key.endswith(_TOKEN)}
        self._tokens = (token for token in count(_FIRST_TOKEN) if token not in taken)
        parsed = parse(config)
        text = text_of(parsed)
        self._whole = parsed.to_dict()
        self._vocabulary = relative.get("vocab_size", _VOCABULARY)
        self._width = getattr(text, "hidden_size", None) if text is not parsed else None
        self.tiny = self._part(parsed, relative, "", text)
        self._pool()

    def _pool(self) -> None:
        """Set the number of image tokens that a model pools its patches into: the published share of them."""
        for key in [name for name in self.kept if name.endswith(_POOLED)]:
            vision = self._whole.get("vision_config") or {}
            patches, of_tiny = (
                _patches({**vision, **tiny}) for tiny in ({}, self.tiny.get("vision_config") or {})
            )
            if patches and of_tiny and patches % self._whole[key] == 0:
                self.tiny[key] = max(1, of_tiny * self._whole[key] // patches)
                self.kept.remove(key)

    def _part(
        self, parsed: Any, relative: Mapping[str, Any], path: str, text: Any
    ) -> dict[str, Any]:
        """Return the tiny configuration of a part, that of its own parts included."""
        full, default = parsed.to_dict(), _defaults(parsed)
        canonical = {own: name for name, own in parsed.attribute_map.items()}
        tiny: dict[str, Any] = {}
        for key in (name for name in full if not name.startswith("_")):
            inner = getattr(parsed, key, None)
            if key in parsed.sub_configs and inner is not None:
                beside = relative.get(key)
                beside = beside if isinstance(beside, Mapping) else {}
                of_text = inner is text
                part = (self._text if of_text else self._named)(inner, beside, f"{path}{key}.")
                any_type = parsed.sub_configs[key].__name__ == "AutoConfig"
                tiny[key] = {"model_type": inner.model_type, **part} if any_type else part
            elif key in default or key in relative or key == "head_dim":
                value = self._value(key, canonical.get(key, key), full, default, relative, path)
                if path and key == "vocab_size" and full[key] == self._whole.get(key):
                    value = self._vocabulary
                omitted = isinstance(full[key], list) and value is None
                if not omitted and (key in relative or value != default.get(key)):
                    tiny[key] = value
        rope = tiny.get("rope_parameters", full.get("rope_parameters"))
        if rope and rope.get(SECTIONS) and (pairs := _pairs({**full, **tiny})):
            tiny["rope_parameters"] = {**rope, SECTIONS: sections_of(rope, pairs)}
        ranks = {name: rank for rank, name in enumerate((*relative, *_SIZES))}
        return {key: tiny[key] for key in sorted(tiny, key=lambda key: ranks.get(key, len(ranks)))}

    def _named(self, inner: Any, beside: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the tiny configuration of a part, with its type if the whole model may have other parts."""
        kind = inner.model_type
        if beside.get("model_type", kind) != kind:
            beside = {}
        tiny = self._part(inner, beside, path, text_of(inner))
        named = "model_type" in beside or not beside
        return {"model_type": inner.model_type, **tiny} if named and inner.model_type else tiny

    def _text(self, inner: Any, beside: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the tiny configuration of the language model: that of its own recipe, if there is one."""
        kind = inner.model_type
        if registry.file_name(kind) in registry.list_model_types():
            if path.count(".") == 1:
                self.text_type, self.text_key = kind, path.removesuffix(".")
            return {**registry.find_recipe(kind).tiny[0].config, "model_type": kind}
        if beside.get("model_type", kind) == kind or set(beside) <= {*_defaults(inner), "head_dim"}:
            own = {key: value for key, value in beside.items() if key != "model_type"}
            return self._named(
                inner, {**own, "model_type": kind} if "model_type" in beside else own, path
            )
        return {"model_type": kind, **shrink({**inner.to_dict(), "model_type": kind})}

    def _value(
        self,
        key: str,
        name: str,
        full: Mapping[str, Any],
        default: Mapping[str, Any],
        relative: Mapping[str, Any],
        path: str,
    ) -> Any:
        """Return the tiny value of a field."""
        value = full[key]
        if key.endswith(_TOKEN):
            return self._token(key, value, default, relative)
        if isinstance(value, bool | str) or value is None:
            return default.get(key) if is_unused(key) and key not in relative else value
        if key in relative and isinstance(relative[key], list) == isinstance(value, list):
            multiple = self._proportional and path and isinstance(value, int)
            return (multiple and _multiple(key, full, relative)) or relative[key]
        if isinstance(value, float):
            return _SIZES[key] if key in _SIZES else awkward(key, value)
        if is_unused(key) or (key in _OF_ENCODER and not path):
            return default.get(key)
        if isinstance(value, int):
            return self._integer(key, name, full, relative, path)
        depth = full.get("num_hidden_layers")
        if isinstance(value, list) and value and len(value) == depth:
            return _cut(value, relative.get("num_hidden_layers") or _SIZES["num_hidden_layers"])
        if key.endswith(_LAYERS) and _are_layers(value):
            return [*range(min(len(value), _FEWEST_LAYERS))]
        if key.endswith((*_LAYERS, "_layer")) and _are_last_layers(value):
            return [*range(-_FEWEST_LAYERS, 0)]
        if value != default.get(key):
            self.kept.append(path + key)
        return value

    def _integer(
        self,
        key: str,
        name: str,
        full: Mapping[str, Any],
        relative: Mapping[str, Any],
        path: str,
    ) -> int:
        value = full[key]
        if self._proportional and path and (multiple := _multiple(key, full, relative)):
            return multiple
        for size in (key, name):
            if size in _SIZES and value > 0:
                return int(_SIZES[size])
        if value <= _SMALL:
            return int(value)
        if value == self._width:
            return int(_SIZES["hidden_size"])
        equals = (other for other in full if full[other] == value and other != key)
        same = (
            relative.get(other, _SIZES.get(other))
            for other in equals
            if other in relative or other in _SIZES
        )
        integer = next((size for size in same if isinstance(size, int)), None)
        if integer is None:
            self.kept.append(path + key)
            return int(value)
        return integer

    def _token(
        self, key: str, value: Any, default: Mapping[str, Any], relative: Mapping[str, Any]
    ) -> Any:
        """Return the id of a token in the tiny vocabulary."""
        if key in relative:
            return relative[key]
        usual = key.startswith(_USUAL_TOKENS)
        if value is None or isinstance(value, list) or (usual and value < _VOCABULARY):
            return value if not isinstance(value, list) else default.get(key)
        if usual:
            return 2 if key.startswith(("eos", "forced_eos")) else 1
        return next(self._tokens)


def _patches(vision: Mapping[str, Any]) -> int:
    """Return the number of patches of an image; 0 for an encoder without such sizes."""
    size, patch = vision.get("image_size"), vision.get("patch_size")
    return (size // patch) ** 2 if isinstance(size, int) and isinstance(patch, int) else 0


def text_of(parsed: Any) -> Any:
    """Return the part that is the language model; the whole if there is none, or more than one.

    Args:
        parsed: Config parsed by transformers.
    """
    try:
        return parsed.get_text_config()
    except ValueError:
        return parsed


def _defaults(parsed: Any) -> Mapping[str, Any]:
    """Return the fields of a config class with their defaults."""
    try:
        defaults: Mapping[str, Any] = type(parsed)().to_dict()
    except (TypeError, ValueError):  # a class without usable defaults
        defaults = dict.fromkeys(parsed.to_dict())
    return defaults


def _multiple(key: str, full: Mapping[str, Any], relative: Mapping[str, Any]) -> int:
    """Return the tiny value of a size that is a multiple of a basic size; 0 for other sizes."""
    for basic, names in _BASIC.items():
        size = full.get(basic)
        if key in names and isinstance(size, int) and size and full[key] % size == 0:
            return int(relative.get(basic, _SIZES[basic]) * full[key] // size)
    return 0


def _cut(kinds: list[Any], layers: int) -> list[Any] | None:
    """Return as many entries as a tiny model has layers, of each kind; None for the default if all are equal."""
    different = [kind for at, kind in enumerate(kinds) if kind not in kinds[:at]]
    return None if len(different) == 1 else (different * layers)[:layers]


def _are_layers(value: Any) -> bool:
    """Whether a value lists numbers of layers."""
    whole = isinstance(value, list) and all(isinstance(item, int) for item in value)
    return whole and all(0 <= a < b for a, b in pairwise(value))


def _are_last_layers(value: Any) -> bool:
    """Whether a value lists several numbers of layers, some of which are counted from the end."""
    several = isinstance(value, list | tuple) and len(value) >= _FEWEST_LAYERS
    return several and all(isinstance(item, int) for item in value) and min(value) < 0


def _pairs(config: Mapping[str, Any]) -> int:
    """Return the number of pairs of values in a head; 0 for a part without attention."""
    heads = config.get("num_attention_heads")
    return int(config.get("head_dim") or (config["hidden_size"] // heads if heads else 0)) // 2


def fields_in(config: Any) -> Iterator[str]:
    """List the fields of a parsed config and of its parts, with dots between a part and its field.

    Args:
        config: Config parsed by transformers. The fields of a language model are left out: any may be inside.
    """
    text = text_of(config)
    for key in _defaults(config):
        inner = getattr(config, key, None)
        if key in config.sub_configs and inner is not None:
            yield key
            if inner is not text:
                yield from (f"{key}.{name}" for name in fields_in(inner))
        else:
            yield key
