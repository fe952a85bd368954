# SPDX-License-Identifier: Apache-2.0
"""GGUF files of encoder-decoders and of their encoders: two stacks of layers, named as gguf-py names them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5ForConditionalGeneration,
)

from qeff_zoo.checkpoint.expressions import rows
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import FEATURE_EXTRACTION
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.validation.reference.loading import load_model

_WORDS = 257
_SIZES = {
    "vocab_size": _WORDS,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
    "n_positions": 512,
}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
#: Architecture of the file, and class and configuration of the model that is converted to it.
MODELS: Mapping[str, tuple[str, Any, dict[str, Any]]] = MappingProxyType(
    {
        "t5": ("t5", T5ForConditionalGeneration, {}),
        "flan-t5": ("t5", T5ForConditionalGeneration, _GATED),
        "umt5": ("t5", UMT5ForConditionalGeneration, _GATED),
        "encoder": ("t5encoder", T5EncoderModel, _GATED),
    }
)


def make(name: str) -> Any:
    _, kind, own = MODELS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind.config_class.model_type, **_SIZES, **own)
    return kind(config).eval()


def write(path: Path, name: str, model: Any) -> Path:
    """Write a file as llama.cpp's converter does."""
    architecture, config = MODELS[name][0], model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    if architecture == "t5":
        writer.add_decoder_start_token_id(config.decoder_start_token_id)
        writer.add_decoder_block_count(config.num_decoder_layers)
    writer.add_tokenizer_model("t5")
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *map(chr, range(33, 33 + _WORDS - 4))]
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 3 + [-3.0] * (_WORDS - 3))
    writer.add_token_types([3, 3, 2] + [1] * (_WORDS - 3))
    for token, number in (("eos", 1), ("pad", 0), ("unk", 2)):
        getattr(writer, f"add_{token}_token_id")(number)
    kind = next(key for key, called in gguf.MODEL_ARCH_NAMES.items() if called == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_decoder_layers)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    for tensor, value in model.state_dict().items():
        if not tensor.endswith("embed_tokens.weight") and tensor not in tied:
            writer.add_tensor(str(names.get_name(tensor, try_suffixes=(".weight",))), value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", MODELS)
def test_a_file_alone_has_the_config_and_the_weights_of_the_converted_model(
    home: Path, tmp_path: Path, name: str
) -> None:
    model = make(name)
    path = write(tmp_path / "model.gguf", name, model)
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.architectures == (type(model).__name__,)
    settings = {key: checkpoint.config[key] for key in _SIZES if key in checkpoint.config}
    assert settings.items() <= model.config.to_dict().items()
    of_decoder = {"num_decoder_layers", "decoder_start_token_id"}
    assert settings.keys() == _SIZES.keys() - (of_decoder if name == "encoder" else set())
    assert checkpoint.config["feed_forward_proj"] == model.config.feed_forward_proj
    values = {
        key: rows(checkpoint.values.get(key, key), checkpoint.read, checkpoint.tensors)
        for key in checkpoint.logical
    }
    expected = model.state_dict()
    missing = expected.keys() - values.keys()
    assert all(key.endswith(("embed_tokens.weight", "lm_head.weight")) for key in missing)
    for key, value in values.items():
        assert np.array_equal(value, expected[key].numpy()), key
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").unlink()
    task = FEATURE_EXTRACTION if name == "encoder" else "text2text-generation"
    read = load_model({"checkpoint": tmp_path / "saved", "gguf": [path]}, task, None)
    for key, value in read.state_dict().items():
        assert torch.equal(value, expected[key]), key
    assert check(checkpoint, Request()).recipe.task == task
