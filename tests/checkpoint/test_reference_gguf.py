# SPDX-License-Identifier: Apache-2.0
"""The reference reads GGUF files: names found, rows turned back, experts joined, norms less one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation.reference.loading import load_model

gguf: Any = pytest.importorskip("gguf")

#: Hugging Face's names in a layer -> llama.cpp's, of most models, and of those with norms behind.
NAMES = {
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    **{f"self_attn.{letter}_norm": f"attn_{letter}_norm" for letter in "qk"},
    **{f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
    **{f"mlp.experts.{one}_proj": f"ffn_{one}_exps" for one in ("gate", "up", "down")},
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
NORMS_BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "phi3": "phi3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}


def tiny(folder: Path, model_type: str) -> Path:
    """Write a recipe's tiny model; of those with experts, all layers have them, as in GGUF."""
    settings = {
        **find_recipe(model_type).tiny[0].config,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type].from_dict(settings))
    model.float().save_pretrained(folder)
    return folder


def name_in_gguf(name: str, behind: bool) -> str:
    """Give a tensor llama.cpp's name."""
    path, _, kind = name.rpartition(".")
    if path in ENDS:
        return f"{ENDS[path]}.{kind}"
    _, _, layer, rest = path.split(".", 3)
    return f"blk.{layer}.{ {**NAMES, **(NORMS_BEHIND if behind else {})}[rest] }.{kind}"


def permute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Do as `LlamaModel.permute` of convert_hf_to_gguf.py does."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def stacked(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Stack the experts of a layer."""
    found: dict[str, Any] = {}
    for name, value in tensors.items():
        layer, inside, rest = name.partition(".experts.")
        if inside:
            expert, _, part = rest.partition(".")
            found.setdefault(f"{layer}.experts.{part}", {})[int(expert)] = value
        else:
            found[name] = value
    return {
        name: np.stack([value[at] for at in sorted(value)]) if isinstance(value, dict) else value
        for name, value in found.items()
    }


def convert(folder: Path, architecture: str, *, extra: bool = False) -> Path:
    """Write a checkpoint as llama.cpp's converter does, matrices of 32 columns or more in Q8_0."""
    path = folder / "model.gguf"
    config = AutoModelForCausalLM.from_pretrained(folder).config
    stored = {
        key: value.float().numpy() for key, value in load_file(folder / "model.safetensors").items()
    }
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in stacked(stored).items():
        if architecture == "llama" and ".q_proj." in name:
            value = permute(value, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            value = permute(value, config.num_key_value_heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            value = value + 1
        place = name_in_gguf(name, architecture in ("gemma2", "gemma3"))
        if value.ndim > 1 and value.shape[-1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(place, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(place, np.ascontiguousarray(value))
    writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
    if extra:
        writer.add_tensor("blk.0.nextn.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_parameters_are_those_of_the_model(tmp_path: Path, model_type: str) -> None:
    folder = tiny(tmp_path / "c", model_type)
    path = convert(folder, ARCHITECTURES[model_type])
    (folder / "model.safetensors").rename(tmp_path / "away.safetensors")
    found = dict(
        load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None).named_parameters()
    )
    (tmp_path / "away.safetensors").rename(folder / "model.safetensors")
    expected = dict(load_model({"checkpoint": folder}, TEXT_GENERATION, None).named_parameters())
    assert found.keys() == expected.keys()
    differs = 0
    for name, value in expected.items():
        step = (
            value.detach().abs().amax() / 127
        )  # of Q8_0; norms lose what adding 1 takes from them
        torch.testing.assert_close(found[name], value, rtol=0, atol=float(step))
        differs += not torch.equal(found[name], value)
    assert differs


def test_unread_gguf_tensor_is_reported(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "c", "qwen3")
    path = convert(folder, "qwen3", extra=True)
    with pytest.raises(ValueError, match=r"what these are for: \['blk.0.nextn.weight'\]"):
        load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "c", "qwen3")
    path = convert(folder, "rwkv7")
    with pytest.raises(ValueError, match="cannot undo what was done to 'rwkv7'; it knows llama"):
        load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None)
