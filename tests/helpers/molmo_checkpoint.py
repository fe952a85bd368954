# SPDX-License-Identifier: Apache-2.0
"""A checkpoint in the form of allenai/Molmo-7B-D-0924, or of Molmo-7B-O-0924, with random weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_WIDE, _LAYERS, _INNER, _NEW = 32, 11, 48, 128
_END = "<|endoftext|>"
#: The published chat template.
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].capitalize() + ': ' + message['content'] }}"
    "{% if not loop.last %}{{ ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' Assistant:' }}{% endif %}"
)


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the published names of weights, and their shapes."""
    width, inner, heads = (
        config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    cached = width // heads * (config["num_key_value_heads"] or heads)
    vision = config["vision_config"]
    top, recorded = "model.transformer.", "model.vision_backbone."
    yield f"{top}wte.embedding", (config["embedding_size"], width)
    yield f"{top}wte.new_embedding", (_NEW, width)
    yield f"{top}ln_f.weight", (width,)
    yield f"{top}ff_out.weight", (config["embedding_size"], width)
    for layer in range(config["num_hidden_layers"]):
        block = f"{top}blocks.{layer}."
        yield f"{block}att_proj.weight", (width + 2 * cached, width)
        if config["qkv_bias"]:
            yield f"{block}att_proj.bias", (width + 2 * cached,)
        if config["attention_layer_norm"]:
            yield f"{block}q_norm.weight", (width,)
            yield f"{block}k_norm.weight", (cached,)
        yield f"{block}attn_out.weight", (width, width)
        yield f"{block}ff_proj.weight", (inner, width)
        yield f"{block}ff_out.weight", (width, inner // 2)
        yield f"{block}attn_norm.weight", (width,)
        yield f"{block}ff_norm.weight", (width,)
    yield f"{recorded}pad_embed", (2, 2 * _WIDE)
    for name, shape in {
        "w1": (inner // 2, _WIDE),
        "w2": (width, inner // 2),
        "w3": (inner // 2, _WIDE),
    }.items():
        yield f"{recorded}image_projector.{name}.weight", shape
    yield from _attention(f"{recorded}image_pooling_2d.", 2 * _WIDE)
    patches = (vision["image_size"][0] // vision["patch_size"]) ** 2
    encoder = f"{recorded}image_vit."
    yield f"{encoder}class_embedding", (_WIDE,)
    yield f"{encoder}positional_embedding", (patches + 1, _WIDE)
    yield f"{encoder}patch_embedding.weight", (_WIDE, 3 * vision["patch_size"] ** 2)
    yield from _both(f"{encoder}pre_ln.", (_WIDE,))
    for layer in range(_LAYERS):
        block = f"{encoder}transformer.resblocks.{layer}."
        yield from _attention(f"{block}attention.", _WIDE)
        yield from _both(f"{block}feed_forward.w1.", (_INNER, _WIDE))
        yield from _both(f"{block}feed_forward.w2.", (_WIDE, _INNER))
        yield from _both(f"{block}attention_norm.", (_WIDE,))
        yield from _both(f"{block}ffn_norm.", (_WIDE,))


def _attention(prefix: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in "qkvo":
        yield from _both(f"{prefix}w{name}.", (_WIDE, _WIDE if name == "o" else width))


def _both(prefix: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}weight", shape
    yield f"{prefix}bias", shape[:1]


def write(folder: Path, *, olmo: bool = False, side: int = 48, patch: int = 4, **more: Any) -> None:
    """Write a checkpoint without code.

    Args:
        folder: Made here.
        olmo: Whether it is in the form of Molmo-7B-O.
        side: Side of a crop in pixels.
        patch: Side of a patch.
        more: Changes of config.json.
    """
    folder.mkdir(parents=True)
    code = {"AutoConfig": "config_molmo.MolmoConfig"}
    config = {
        "architectures": ["MolmoForCausalLM"], "auto_map": code, "model_type": "molmo",
        "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": None if olmo else 2, "embedding_size": 257, "vocab_size": 257,
        "max_position_embeddings": 1024, "layer_norm_eps": 1e-6, "layer_norm_type": "rms", "norm_after": olmo,
        "attention_layer_norm": olmo, "qkv_bias": not olmo, "rope_theta": 1000.0, "clip_qkv": None,
        "tie_word_embeddings": False, "weight_tying": False, "use_position_ids": True, "use_cache": True,
        **more,
        "vision_config": {
            "hidden_size": _WIDE, "intermediate_size": _INNER, "num_hidden_layers": _LAYERS, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": _WIDE // 2, "image_size": [side, side], "patch_size": patch,
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    random, weights = np.random.default_rng(0), {}
    for name, shape in _tensors(config):
        drawn = random.standard_normal(shape, np.float32)
        norm = name.endswith("weight") and len(shape) == 1
        weights[name] = 1 + 0.1 * drawn if norm else (0.2 if len(shape) > 1 else 0.1) * drawn
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    write_texts(folder)


def write_texts(folder: Path) -> None:
    """Write a tokenizer of bytes with the model's special tokens, its chat template, and the processor's settings.

    Args:
        folder: A folder that exists.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    special = ["<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<|image|>"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=_END, pad_token=_END, additional_special_tokens=special
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    settings = {"image_processor_type": "MolmoImageProcessor", "processor_class": "MolmoProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
