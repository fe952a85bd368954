# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tiny pipelines: diffusers' and transformers' own classes with random weights, saved by them.

    python -m qeff_zoo.validation.reference.tiny_pipelines FOLDER < request.json

In: `name` of the pipeline, `classes` by component, `config` of each, and `seed`. Tokenizers follow a rule: every byte
is a token, and so are a few common words.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import diffusers
import torch
import transformers
from tokenizers import pre_tokenizers

#: Pieces of words that are tokens, in the order of their merges.
_MERGES = (
    *("t h", "th e</w>", "c a", "ca t</w>", "d o", "do g</w>", "a n", "an d</w>"),
    *("r e", "re d</w>", "o n</w>", "i n</w>", "h o", "s e</w>", "u se</w>", "ho use</w>"),
)


def write(folder: str, request: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        folder: A folder that does not exist yet.
        request: Name, classes, configurations and seed.
    """
    torch.manual_seed(request["seed"])
    config, parts = request["config"], dict[str, Any]()
    for component, kind in request["classes"].items():
        parts[component] = _component(kind, config[component])
        if component == "image_encoder":
            parts["image_processor"] = _image_processor(config[component]["image_size"])
        number = component.removeprefix("text_encoder")
        if number != component:
            parts[f"tokenizer{number}"] = _tokenizer(kind, config[component])
    scheduler = dict(config["scheduler"])
    parts["scheduler"] = getattr(diffusers, scheduler.pop("_class_name")).from_config(scheduler)
    pipeline = getattr(diffusers, request["name"])
    known = pipeline.__init__.__code__.co_varnames
    absent = {name: None for name in ("safety_checker", "feature_extractor") if name in known}
    settings = {name: value for name, value in config.items() if name not in parts}
    pipeline(**parts, **absent, **settings).save_pretrained(folder)


def _component(kind: str, config: Mapping[str, Any]) -> Any:
    """Return a module with random weights, large enough for a dropped property to show."""
    if made := getattr(transformers, kind, None):
        module = made(made.config_class(**config))
    else:
        module = getattr(diffusers, kind)(**config)
    for parameter in module.parameters():
        if parameter.dim() == 1 or not parameter.any():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return module.eval()


def _image_processor(side: int) -> Any:
    """Return an image processor of CLIP for images of a size."""
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    )


def _tokenizer(kind: str, config: Mapping[str, Any]) -> Any:
    """Return a tokenizer of a text encoder's class."""
    if kind.endswith("T5EncoderModel"):
        return _unigrams(config["vocab_size"])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(f"{one}</w>" for one in alphabet)]
    tokens += ["".join(pair.split()) for pair in _MERGES]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    merges: Any = [tuple(pair.split()) for pair in _MERGES]
    return transformers.CLIPTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,
        model_max_length=config.get("max_position_embeddings", 77),
    )


def _unigrams(size: int) -> Any:
    """Return a tokenizer of pieces with scores, for T5."""
    alphabet = sorted({*map(chr, range(33, 127)), *"éöß"})
    words = ["▁", "▁the", "▁a", "▁cat", "▁dog", "ing", "er", "▁ho", "use", "▁red", "▁on", "▁in"]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = [(one, -2.0 - number / 8) for number, one in enumerate([*words, *alphabet])]
    return transformers.T5Tokenizer(
        vocab=[*special, *pieces][:size], extra_ids=0, model_max_length=512
    )


if __name__ == "__main__":
    write(sys.argv[1], json.load(sys.stdin))
