# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as they are published, made small by one rule: `tests/published/TYPE.json` in, a folder of files out.

A file has `model_id` and `source`, where its facts were read; `config`, `preprocessor_config`, `processor_config`,
`tokenizer_config` and `generation_config` as published, without what has no part in processing; `tokens`, the text of
each special token and its published id; `prompts`, each with a marker for every image; and `options` of the calls
that the model needs.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from checkout import TESTS
from tokenizers import decoders, models, pre_tokenizers, processors

PUBLISHED = TESTS / "published"
FILES = "preprocessor_config", "processor_config", "tokenizer_config", "generation_config"
_HEADS, _HEAD_DIM = 4, 16
_OF_HEADS = "attention_heads", "num_heads", "_n_heads"
_LAYERS = (
    *("num_hidden_layers", "num_global_layers", "depth", "num_layers", "encoder_layers"),
    "decoder_layers",
)
#: Numbers of features that a sound has, or of a head, which are no widths.
_FEATURES = {"input_dim", "feature_projection_input_dim", "rotary_dim"}
_PER_LAYER = {"layer_types", "mlp_layer_types", "layers_block_type"}
#: Which of two layers those are that a config names.
_CHOSEN: dict[str, Any] = {
    "deepstack_visual_indexes": [0, 1], "fullatt_block_indexes": [1], "global_attn_indexes": [1],
    "sliding_window_pattern": 2, "cross_attention_layers": [1], "intermediate_layers_indices": [0, 1],
    "insert_layer_id": 0,
}  # fmt: skip
_LISTS = {"downsample_channels", "conv_dim"}
_EXPERTS = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}
#: What the smallest width becomes, and endings of the names of widths.
_LEAST = 64
_WIDTHS = (
    "d_model",
    "hidden_size",
    "intermediate_size",
    "_dim",
    "_size_mlp",
    "embed_dim",
    "proj_dims",
    "mlp_dim",
    "_channels",
)
#: Settings of windows of 30 seconds, and how many positions those have in an encoder; they become 2 seconds.
_WINDOWS = {"chunk_length", "n_samples", "nb_max_frames"}
_POSITIONS, _SHORTER = 1500, 15
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def names(kind: str = "") -> list[str]:
    """Return the names of all files of facts: of images, or of "audio"."""
    return sorted(
        path.relative_to(PUBLISHED).with_suffix("").as_posix()
        for path in (PUBLISHED / kind).glob("*.json")
    )


def read(name: str) -> dict[str, Any]:
    """Return the facts of a file."""
    found: dict[str, Any] = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    return found


def ids(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of special tokens in a vocabulary of bytes, in the order of the published ones."""
    if "vocab" in facts:
        return dict(facts["vocab"])
    ordered = sorted(facts["tokens"], key=facts["tokens"].get)
    return {token: len(_BYTES) + place for place, token in enumerate(ordered)}


def scaled(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published config with fewer layers and smaller widths: whatever was equal or a multiple is so still.

    Tokens that it names keep their texts. Sizes of images and patches stay, as do all flags.
    """
    new = ids(facts)
    moved = {old: new[token] for token, old in facts["tokens"].items()}
    vocabulary = len(new) if "vocab" in facts else len(_BYTES) + len(new)
    return _scaled(facts["config"], _small({*_widths(facts["config"])}), moved, vocabulary)


def _small(widths: Collection[int]) -> dict[int, int]:
    """Return small widths, all different: multiples of the least published one first, the others near their ratio."""
    least, taken = min(widths), dict[int, int]()
    for width in sorted(widths, key=lambda one: (one % least > 0, one)):
        near = max(round(width * _LEAST / least / 32), 2) * 32
        while near in taken.values():
            near += 32
        taken[width] = near
    return taken


def _is_width(name: str, value: Any) -> bool:
    ends = name.endswith(_WIDTHS) and "head_dim" not in name and name not in _FEATURES
    return ends and isinstance(value, int) and value >= 64


def _widths(config: Mapping[str, Any]) -> list[int]:
    found = [value for name, value in config.items() if _is_width(name, value)]
    found += [one for name in _LISTS for one in config.get(name, ())]
    inner = [value for value in config.values() if isinstance(value, Mapping)]
    return found + [width for one in inner for width in _widths(one)]


def _scaled(
    config: Mapping[str, Any], small: Mapping[int, int], moved: Mapping[int, int], vocabulary: int
) -> dict[str, Any]:
    def token(value: Any) -> Any:
        if isinstance(value, list):
            return [token(item) for item in value]
        return moved.get(value, value if value is None or value < vocabulary else 0)

    def one(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return _scaled(value, small, moved, vocabulary)
        if name.endswith(_LAYERS):
            return min(value, 2)
        if name.startswith("max_") and value == _POSITIONS:
            return value // _SHORTER
        if name in _PER_LAYER and isinstance(value, list):
            kinds = [*dict.fromkeys(value)]
            return kinds if name == "layers_block_type" else [*kinds, *value][:2]
        if name in _CHOSEN:
            return _CHOSEN[name]
        if name == "vision_feature_layers":  # of three states
            return [min(max(layer, -3), 2) for layer in value]
        if name.endswith(_OF_HEADS):
            return _HEADS
        if name.endswith("num_key_value_heads"):
            heads = config.get(name.replace("key_value", "attention"))
            return _HEADS if value == heads else min(value, 2)
        if "head_dim" in name:
            return _HEAD_DIM
        if name == "rotary_dim":
            return value * _HEAD_DIM // config["head_dim"]
        if name == "n_groups":
            return min(value, 2)
        if name in _EXPERTS:
            return min(value, 8)
        if name == "vocab_size":
            return vocabulary
        if name.endswith(("token_id", "token_index", "token_ids")):
            return token(value)
        if name in _LISTS:
            return [small[width] for width in value]
        return small[value] if _is_width(name, value) else value

    made = {name: one(name, value) for name, value in config.items()}
    if any(name.endswith(_OF_HEADS) for name in made):
        made |= dict.fromkeys(
            ("initializer_range", "init_std"), 0.2
        )  # so that media show in logits
    if states := made.get("intermediate_layers_indices"):  # beside the last one
        made["vision_output_dim"] = made["hidden_size"] * (1 + len(states))
    for name in ("rope_scaling", "rope_parameters"):
        if sections := (made.get(name) or {}).get("mrope_section"):
            turned = made.get("partial_rotary_factor", 1)
            half = int(made.get("head_dim", made.get("hidden_size", 0) // _HEADS) * turned) // 2
            first, second = (half * section // sum(sections) for section in sections[:2])
            made[name] = {**made[name], "mrope_section": [first, second, half - first - second]}
    return made


def tokenizer(facts: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return a tokenizer of bytes with the published special tokens."""
    made = tokenizers.Tokenizer(models.BPE({one: at for at, one in enumerate(_BYTES)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    known = ids(facts)
    made.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False) for token in known]
    )
    bos = facts["tokenizer_config"].get("bos_token")
    if facts.get("adds_bos"):
        template = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, known[bos])]
        )
        made.post_processor = template
    assert all(made.token_to_id(token) == number for token, number in known.items())
    return made


def write(facts: Mapping[str, Any], folder: Path) -> None:
    """Write all files of a published checkpoint but its config and weights."""
    if "vocab" in facts:
        (folder / "vocab.json").write_text(json.dumps(facts["vocab"]), encoding="utf-8")
    else:
        tokenizer(facts).save(str(folder / "tokenizer.json"))
    for name in FILES:
        if facts.get(name) is not None:
            settings = dict(facts[name])
            if name == "tokenizer_config" and "vocab" not in facts:
                settings["tokenizer_class"] = "PreTrainedTokenizerFast"
            settings |= {one: settings[one] // _SHORTER for one in _WINDOWS & settings.keys()}
            (folder / f"{name}.json").write_text(json.dumps(settings), encoding="utf-8")
    if template := facts.get("chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
