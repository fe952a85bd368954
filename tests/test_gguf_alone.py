# SPDX-License-Identifier: Apache-2.0
"""A GGUF file alone computes in transformers what llama.cpp computes of it: one made file for each architecture."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
import pytest
import test_gguf_encoder_decoder
import torch
from gguf_files import Array, parameters_of, stored
from llama_cpp import opened
from safetensors.numpy import load_file, save_file
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from qeff_zoo.checkpoint.expressions import rows
from qeff_zoo.checkpoint.formats.gguf_config import _known
from qeff_zoo.checkpoint.formats.gguf_names import _document, layouts
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.sentence_transformers.modules import bindings_of, read_pooling, read_steps
from qeff_zoo.errors import ZooError
from qeff_zoo.export import architectures
from qeff_zoo.tasks import FEATURE_EXTRACTION, TEXT_GENERATION
from qeff_zoo.validation.reference.loading import load_model

REFUSED: dict[str, str] = dict(_document()["refused"])
VOCABULARY = 260
#: Smaller than any published model; every size differs from every other.
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
WIDE = {"head_dim": 24}
NORM = {"layer_norm_eps": 1e-3}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "layer_norm_epsilon": 1e-3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GRANITE = {
    "logits_scaling": 2.0,
    "residual_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
}


#: Routed experts beside one that all tokens use, behind a dense layer.
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {**BASE["rope_parameters"], **parameters}}


def windows(every: int, size: int = 6, layers: int = 4) -> dict[str, Any]:
    kinds = [
        "full_attention" if at % every == every - 1 else "sliding_attention" for at in range(layers)
    ]
    return {"layer_types": kinds, "sliding_window": size}


#: Linear attention, with several value heads for each key head.
DELTA: dict[str, Any] = {
    **rope(partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True),
    "rms_norm_eps": 1e-6,  # transformers has no other for keys of linear attention
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


GEMMA4: dict[str, Any] = {
    **WIDE,
    **windows(2),
    "global_head_dim": 32,
    "final_logit_softcapping": 5.0,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


#: What published models of each type have that others have not.
MODELS: dict[str, dict[str, Any]] = {
    "afmoe": {
        **WIDE,
        **windows(4),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_dense_layers": 1,
        "num_shared_experts": 1,
        "route_scale": 1.7,
        "mup_enabled": True,
    },
    "apertus": {},
    "arcee": WIDE,
    "bloom": {"n_layer": 3, "n_head": 4, "layer_norm_epsilon": 1e-3},
    "cohere": {**NORM, "logit_scale": 0.3, "tie_word_embeddings": True},
    "cohere2": {
        **NORM,
        **windows(4),
        "logit_scale": 0.3,
        "tie_word_embeddings": True,
        "head_dim": 16,
    },
    "dbrx": {
        "d_model": 64,
        "n_layers": 3,
        "n_heads": 4,
        "max_seq_len": 256,
        **rope(),
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.9, "rope_theta": 5000.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v3": {
        "rms_norm_eps": 1e-6,  # transformers has no other for latents
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.7,
        **rope(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=64,
            mscale=0.7,
            mscale_all_dim=0.7,
        ),
    },
    "dots1": {
        **WIDE,
        **ROUTED,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "sliding_window": None,
        "num_key_value_heads": 4,  # llama.cpp has no others
    },
    "ernie4_5": {**WIDE, "tie_word_embeddings": True},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
    },
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 4, "head_dim": 16},
    "exaone_moe": {
        **WIDE,
        **windows(4),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.7,
    },
    "falcon": {
        "multi_query": True,
        "layer_norm_epsilon": 1e-3,
        "num_kv_heads": 1,
        "ffn_hidden_size": 256,
    },
    "falcon_h1": {
        **WIDE,
        "mamba_d_ssm": 96,
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
    },
    "gemma": {**WIDE, "tie_word_embeddings": True},
    "gemma2": {**WIDE, **windows(2), "query_pre_attn_scalar": 24, "tie_word_embeddings": True},
    "gemma3_text": {
        **WIDE,
        **windows(6, layers=7),
        "num_hidden_layers": 7,
        "query_pre_attn_scalar": 24,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "gemma3n_text": {
        **WIDE,
        **windows(3),
        "num_kv_shared_layers": 0,
        "intermediate_size": 2048,  # llama.cpp's deviations are of a sample
        "activation_sparsity_pattern": [0.95] * 4,
        "vocab_size_per_layer_input": VOCABULARY,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "gemma4_text": {
        **GEMMA4,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 48,
    },
    "glm": {**rope(partial_rotary_factor=0.5), "head_dim": 16, "attention_bias": True},
    "glm4": {**WIDE, **rope(partial_rotary_factor=0.5)},
    "glm4_moe": {
        **ROUTED,
        **rope(partial_rotary_factor=0.5),
        "head_dim": 32,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    "gpt2": GPT,
    "gpt_bigcode": {**GPT, "multi_query": True, "n_inner": 256},
    "gpt_neox": {
        **NORM,
        **rope(partial_rotary_factor=0.25),
        "use_parallel_residual": True,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
    },
    "gpt_oss": {**EXPERTS, **windows(2), "head_dim": 32},
    "granite": {**GRANITE, "tie_word_embeddings": True},
    "granitemoe": {**GRANITE, **EXPERTS, "tie_word_embeddings": True},
    "granitemoehybrid": {
        **GRANITE,
        **EXPERTS,
        "shared_intermediate_size": 48,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
    },
    "hunyuan_v1_dense": {**WIDE, "tie_word_embeddings": True},
    "hunyuan_v1_moe": {**WIDE, "num_experts": 4, "moe_topk": 2, "tie_word_embeddings": True},
    "jamba": {
        "num_hidden_layers": 5,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 16,
        "mamba_dt_rank": 8,
    },
    "lfm2": {
        "num_hidden_layers": 5,
        "norm_eps": 1e-3,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": True,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    },
    "lfm2_moe": {
        "num_hidden_layers": 5,
        "norm_eps": 1e-3,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_dense_layers": 2,
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    },
    "llama": {**WIDE, "rope_parameters": LLAMA3},
    "llama4_text": {
        **WIDE,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size": 48,
        "intermediate_size_mlp": 96,
        "interleave_moe_layer_step": 2,
    },
    "mamba": {"state_size": 16, "layer_norm_epsilon": 1e-3, "num_hidden_layers": 4},
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 1,
        "num_hidden_layers": 3,
        "layer_norm_epsilon": 1e-3,
    },
    "minicpm3": {
        "rms_norm_eps": 1e-6,  # transformers has no other for latents
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "tie_word_embeddings": True,
    },
    "minimax_m2": {**EXPERTS, **rope(partial_rotary_factor=0.5), "head_dim": 32},
    "ministral3": {
        **WIDE,
        **rope(
            rope_type="yarn",
            factor=8.0,
            original_max_position_embeddings=16,
            beta_fast=32.0,
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            llama_4_scaling_beta=0.3,
        ),
    },
    "mixtral": {**EXPERTS, "sliding_window": None},
    "mpt": {
        "hidden_size": 96,
        "n_layers": 3,
        "n_heads": 6,
        "max_seq_len": 256,
        "layer_norm_epsilon": 1e-3,
        "attn_config": {"clip_qkv": 0.7},
    },
    "nemotron": {"norm_eps": 1e-3, **rope(partial_rotary_factor=0.5), "head_dim": 16},
    "nemotron_h": {
        **WIDE,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "layer_norm_epsilon": 1e-3,
    },
    "olmo": {"clip_qkv": 0.7},
    "olmo2": {},
    "olmo3": {
        **windows(4),
        "rope_parameters": {
            "sliding_attention": BASE["rope_parameters"],
            "full_attention": {
                **BASE["rope_parameters"],
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    },
    "olmoe": {
        "num_key_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
    },
    "phi": {**NORM, **rope(partial_rotary_factor=0.5), "hidden_act": "gelu_new"},
    "phi3": {"sliding_window": None, **rope(partial_rotary_factor=0.75), "hidden_size": 128},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": False,
    },
    "qwen3": WIDE,
    "qwen3_5_moe_text": {
        **DELTA,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_5_text": DELTA,
    "qwen3_moe": {
        **WIDE,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
    "qwen3_next": {
        **DELTA,
        **rope(partial_rotary_factor=0.25),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
    "seed_oss": {**WIDE, "attention_bias": True},
    "smollm3": {"tie_word_embeddings": True},
    "stablelm": {**NORM, **rope(partial_rotary_factor=0.25), "use_qkv_bias": True},
    "starcoder2": {
        "norm_epsilon": 1e-3,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_bias": True,
    },
}


#: Types whose routers score experts by a sigmoid.
SIGMOID = ("afmoe", "deepseek_v3", "exaone_moe", "dots1", "glm4_moe", "lfm2_moe", "minimax_m2")
#: Types whose configurations name other values than Llama's does.
OLDER = ("bloom", "dbrx", "gpt2", "gpt_bigcode", "gpt_neox", "mamba", "mamba2", "mpt")
COMMON = ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id", "pad_token_id")


#: Embedders.
EMBEDDERS: dict[str, dict[str, Any]] = {
    kind: {**NORM, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, **own}
    for kind, own in {
        "bert": {"max_position_embeddings": 64},
        "eurobert": BASE,
        "jina_bert": {"max_position_embeddings": 64, "feed_forward_type": "geglu"},
        "modernbert": {
            "norm_eps": 1e-3,
            "local_attention": 12,
            "num_hidden_layers": 5,
            "layer_types": ["sliding_attention" if at % 3 else "full_attention" for at in range(5)],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 9000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        "nomic_bert": {**rope(rope_theta=1000.0), "head_dim": 16},
    }.items()
}


def make(folder: Path, kind: str, **changes: Any) -> Path:
    """Save a model of random weights that are large enough to tell its parts."""
    own = {**MODELS, **EMBEDDERS}[kind] | changes
    settings = {
        **({} if kind in (*OLDER, *EMBEDDERS) else BASE),
        **{key: BASE[key] for key in COMMON},
        **own,
    }
    architectures.register(kind)
    config = AutoConfig.for_model(kind, **settings)
    torch.manual_seed(3)
    auto: Any = AutoModel if kind in EMBEDDERS else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "conv" not in name:
                parameter.normal_(
                    0, 0.6 / parameter.shape[-1] ** 0.5 if "embed" not in name else 0.6
                )
            elif "norm" in name or name.endswith(
                ("alpha_p", "alpha_n", "bias", "sinks", ".D", "A_log")
            ):
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.add_(torch.randn_like(buffer) * 0.1)
    model.save_pretrained(folder)
    return folder


def metadata_of(config: Any) -> dict[str, Any]:
    """Give the metadata that llama.cpp's converters write for a configuration, without the architecture's name."""

    def get(*names: str) -> Any:
        values = [getattr(config, name, None) for name in names]
        return next((value for value in values if value is not None), None)

    heads = get("num_attention_heads", "n_head")
    ropes = get("rope_parameters") or {}
    full = ropes.get("full_attention", ropes)
    size = get("head_dim") or (get("hidden_size") // heads if heads else None)
    width = get("hidden_size", "n_embd")
    found = {
        "context_length": get("max_position_embeddings", "n_positions", "max_seq_len") or 2048,
        "embedding_length": width,
        "block_count": get("num_hidden_layers", "n_layer"),
        "feed_forward_length": get("ffn_hidden_size", "intermediate_size", "n_inner") or 4 * width,
        "attention.head_count": heads,
        "attention.head_count_kv": get("num_kv_heads", "num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": get("rms_norm_eps"),
        "attention.layer_norm_epsilon": get(
            "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"
        ),
        "expert_count": get(
            "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
        ),
        "expert_used_count": get("num_experts_per_tok", "moe_topk", "moe_k"),
        "expert_shared_count": get("n_shared_experts", "moe_num_shared_experts"),
        "expert_weights_norm": get("norm_topk_prob") if get("n_routed_experts") else None,
        "leading_dense_block_count": get(
            "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"
        ),
        "expert_weights_scale": get("routed_scaling_factor") if get("n_routed_experts") else None,
        "expert_feed_forward_length": get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": get("shared_expert_intermediate_size"),
        "attention.key_length": get("head_dim"),
        "attention.value_length": get("head_dim"),
        "rope.freq_base": full.get("rope_theta"),
        "rope.dimension_count": int(size * full.get("partial_rotary_factor", 1))
        if full and size
        else None,
        "logit_scale": get("logit_scale", "logits_scaling"),
        "residual_scale": get("residual_multiplier"),
        "embedding_scale": get("embedding_multiplier"),
        "attention.scale": get("attention_multiplier"),
        "attention.clamp_kqv": get("clip_qkv"),
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "attention.sliding_window": get("sliding_window") or None,
        "use_parallel_residual": get("use_parallel_residual"),
    }
    if full.get("rope_type") in ("linear", "yarn"):
        found["rope.scaling.type"], found["rope.scaling.factor"] = full["rope_type"], full["factor"]
        found["rope.scaling.original_context_length"] = full.get("original_max_position_embeddings")
    return {key: value for key, value in found.items() if value is not None}


def state_space(kernel: int, inner: int, state: int, heads: int, groups: int = 1) -> dict[str, int]:
    """Give the metadata of state space layers."""
    return {
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }


def adapted(kind: str, config: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Change what single converters write otherwise."""
    rms = found.get("attention.layer_norm_epsilon")
    if kind == "mamba":
        state = {
            "conv_kernel": config.conv_kernel,
            "inner_size": config.intermediate_size,
            "state_size": config.state_size,
        }
        return {
            "context_length": 1 << 20,
            "embedding_length": 64,
            "block_count": 4,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": rms,
            **{f"ssm.{key}": value for key, value in state.items()},
            "ssm.time_step_rank": config.time_step_rank,
        }
    if kind == "mamba2":
        inner = config.num_heads * config.head_dim
        return {
            "context_length": 1 << 20,
            "embedding_length": 64,
            "block_count": config.num_hidden_layers,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": rms,
            **state_space(config.conv_kernel, inner, config.state_size, config.num_heads),
        }
    if kind == "granitemoehybrid":
        inner = config.mamba_n_heads * config.mamba_d_head
        counts = [2 if "full" in one or one == "attention" else 0 for one in config.layer_types]
        found |= {
            "attention.head_count_kv": counts,
            "expert_shared_feed_forward_length": config.shared_intermediate_size,
            "rope.scaling.finetuned": config.position_embedding_type == "rope",
            **state_space(config.mamba_d_conv, inner, config.mamba_d_state, config.mamba_n_heads),
        }
    if kind == "nemotron_h":
        inner, kinds = config.mamba_num_heads * config.mamba_head_dim, config.layers_block_type
        forward = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
        routed = "moe" in kinds
        found = {key: value for key, value in found.items() if routed or "expert" not in key}
        found |= {
            "attention.head_count_kv": [2 * (one == "full_attention") for one in kinds],
            "feed_forward_length": [forward.get(one, 0) for one in kinds],
            "attention.layer_norm_rms_epsilon": rms,
            "rope.dimension_count": 24,
            **state_space(config.conv_kernel, inner, config.ssm_state_size, config.mamba_num_heads),
            "ssm.group_count": config.n_groups,
        }
        if routed:
            found["expert_shared_feed_forward_length"] = config.moe_shared_expert_intermediate_size
    if kind in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"):
        heads = config.linear_num_value_heads
        inner = heads * config.linear_value_head_dim
        sizes = (config.linear_conv_kernel_dim, inner, config.linear_key_head_dim, heads)
        found |= state_space(*sizes, config.linear_num_key_heads)
        found["full_attention_interval"] = 4
    if kind.startswith("qwen3_5"):
        found["rope.dimension_sections"] = [2, 1, 1, 0]
    if kind == "qwen3_5_moe_text":
        del found["feed_forward_length"]
    if kind == "deepseek_v3":
        rank, rotated = config.kv_lora_rank, config.qk_rope_head_dim
        found |= {
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": config.q_lora_rank,
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": config.qk_nope_head_dim + rotated,
            "attention.value_length_mla": config.v_head_dim,
            "rope.dimension_count": rotated,
            "rope.scaling.yarn_log_multiplier": 0.1 * config.rope_parameters["mscale_all_dim"],
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
        }
    if kind == "falcon_h1":
        sizes = (config.mamba_d_conv, config.mamba_d_ssm, config.mamba_d_state)
        found |= state_space(*sizes, config.mamba_n_heads, config.mamba_n_groups)
        for key in ("embedding_scale", "logit_scale"):
            found.pop(key, None)
    if kind == "dbrx":
        experts = config.ffn_config
        found |= {
            "feed_forward_length": experts.ffn_hidden_size,
            "attention.clamp_kqv": config.attn_config.clip_qkv,
            "attention.layer_norm_epsilon": 1e-5,
            "expert_count": experts.moe_num_experts,
            "expert_used_count": experts.moe_top_k,
        }
    if kind == "gemma3n_text":
        normal, shares = NormalDist(), config.activation_sparsity_pattern
        found |= {
            "activation_sparsity_scale": [
                normal.inv_cdf(one) if one else -math.inf for one in shares
            ],
            "altup.active_idx": config.altup_active_idx,
            "altup.num_inputs": config.altup_num_inputs,
            "attention.shared_kv_layers": config.num_kv_shared_layers,
            "attention.sliding_window_pattern": [one[0] == "s" for one in config.layer_types],
            "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        }
    if kind == "gemma4_text":
        slides = [one[0] == "s" for one in config.layer_types]
        full = config.to_dict()["per_layer_config"]["1"]
        keys = full.get("num_key_value_heads", 2)
        wide = config.intermediate_size
        own = config.num_hidden_layers - config.num_kv_shared_layers
        for part in ("key", "value"):
            found[f"attention.{part}_length"] = full["head_dim"]
            found[f"attention.{part}_length_swa"] = config.head_dim
        found |= {
            "attention.head_count_kv": [2 if one else keys for one in slides],
            "attention.shared_kv_layers": config.num_kv_shared_layers,
            "attention.sliding_window_pattern": slides,
            "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
            "expert_used_count": config.top_k_experts,
            "rope.dimension_count": full["head_dim"],
            "rope.dimension_count_swa": config.head_dim,
            "rope.freq_base_swa": 10000.0,
        }
        if config.use_double_wide_mlp:
            found["feed_forward_length"] = [wide * (1 + (at >= own)) for at in range(own + 2)]
    if kind == "jamba":
        inner = config.mamba_expand * config.hidden_size
        sizes = (config.mamba_d_conv, inner, config.mamba_d_state, config.mamba_dt_rank)
        found |= state_space(*sizes)
        found["attention.head_count_kv"] = [
            2 * (one == "attention") for one in config.layers_block_type
        ]
        for key in ("ssm.group_count", "rope.freq_base", "rope.dimension_count"):
            del found[key]
    if kind == "mpt":
        found["attention.max_alibi_bias"] = float(config.attn_config.alibi_bias_max)
        found["attention.clamp_kqv"] = config.attn_config.clip_qkv
    if kind == "minicpm3":
        del found["attention.value_length"], found["logit_scale"]
        found |= {
            "attention.q_lora_rank": config.q_lora_rank,
            "attention.kv_lora_rank": config.kv_lora_rank,
            "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
            "rope.dimension_count": config.qk_rope_head_dim,
        }
    if kind in SIGMOID:
        found["expert_gating_func"] = 2
    if kind in ("afmoe", "exaone_moe"):
        found |= {
            "expert_shared_count": config.num_shared_experts,
            "expert_weights_scale": 1.7,
            "expert_weights_norm": True,
            "leading_dense_block_count": 1,
        }
    if kind == "ernie4_5_moe":
        found["interleave_moe_layer_step"] = config.moe_layer_interval
        found["expert_shared_feed_forward_length"] = 64  # of no meaning
    if kind == "ministral3":
        found |= {
            "attention.temperature_scale": config.rope_parameters["llama_4_scaling_beta"],
            "rope.scaling.yarn_log_multiplier": 1.0,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        }
    if kind == "llama4_text":
        found |= {
            "feed_forward_length": config.intermediate_size_mlp,
            "expert_feed_forward_length": config.intermediate_size,
            "interleave_moe_layer_step": config.interleave_moe_layer_step,
        }
    if kind == "hunyuan_v1_moe":
        found |= {"expert_feed_forward_length": config.intermediate_size, "expert_shared_count": 1}
    if kind in ("lfm2", "lfm2_moe"):
        counts = [2 if one == "full_attention" else 0 for one in config.layer_types]
        found |= {"attention.head_count_kv": counts, "shortconv.l_cache": config.conv_L_cache}
        found["attention.layer_norm_rms_epsilon"] = rms
    if kind in ("gpt_oss", "minimax_m2"):
        found["expert_feed_forward_length"] = config.intermediate_size
    if kind == "olmo":
        found["attention.layer_norm_epsilon"] = 1e-5
    if kind == "olmo3":
        found["attention.sliding_window_pattern"] = [
            one == "sliding_attention" for one in config.layer_types
        ]
    if kind in ("gpt2", "gpt_bigcode"):
        found = {key: value for key, value in found.items() if not key.startswith("rope")}
    if kind == "gpt_bigcode":
        found["attention.head_count_kv"] = 1
    if kind == "phi3":
        found["attention.sliding_window"] = 0
    if kind in EMBEDDERS:
        found |= {"attention.causal": False, "pooling_type": 1}
    if kind == "modernbert":
        found |= {
            "attention.sliding_window": config.local_attention,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
            "attention.layer_norm_epsilon": config.norm_eps,
        }
    if kind in ("bert", "jina_bert"):
        found = {key: value for key, value in found.items() if not key.startswith("rope")}
    return found


def write(
    path: Path,
    folder: Path,
    extra: Mapping[str, Array] | None = None,
    *,
    architecture: str = "",
    tensors: Mapping[str, Array] | None = None,
    **changes: Any,
) -> Path:
    """Write a file of a checkpoint as converters do: metadata, a vocabulary of bytes, tensors.

    Args:
        path: The file.
        folder: The checkpoint.
        extra: Further tensors.
        architecture: Another one than that of the checkpoint's type.
        tensors: Others than those of the checkpoint.
        changes: Metadata that are changed, `__` for a dot; None for no such.
    """
    config = AutoConfig.from_pretrained(folder)
    config.allow_global_per_layer_attribute_access = True
    kind = config.model_type
    architecture = architecture or layouts()[kind].architecture
    writer = gguf.GGUFWriter(path, architecture)
    found = adapted(kind, config, metadata_of(config))
    found |= {key.replace("__", "."): value for key, value in changes.items()}
    for key, value in found.items():
        if value is not None:
            add = {
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
                str: writer.add_string,
                list: writer.add_array,
            }
            add[type(value)](f"{architecture}.{key}", value)
    for key, values in parameters_of(folder).items():
        writer.add_array(key, values)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>", "<pad>", "<|im_end|>"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * 4)
    writer.add_token_merges(["a b"])
    writer.add_token_type_count(2)
    for name, number in (("bos", 256), ("eos", 257), ("pad", 258)):
        getattr(writer, f"add_{name}_token_id")(number)
    for name, value in {**(tensors or stored(folder)), **(extra or {})}.items():
        writer.add_tensor(name, np.ascontiguousarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def of_transformers(checkpoint: Checkpoint, folder: Path, auto: Any = None) -> Any:
    """Load with transformers what a file alone was taken for."""
    folder.mkdir()
    tensors = {
        name: np.array(
            rows(checkpoint.values.get(name, name), checkpoint.read, checkpoint.tensors), order="C"
        )
        for name in checkpoint.logical
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(dict(checkpoint.config) | {"quantization_config": None})
    )
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    auto = auto or (AutoModel if config.model_type in EMBEDDERS else AutoModelForCausalLM)
    return auto.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def difference(path: Path, folder: Path) -> float:
    """Return how far transformers' logits are from llama.cpp's, in their standard deviations."""
    tokens = np.random.default_rng(1).integers(0, 256, 48).tolist()
    with opened(path) as llama:
        expected = llama.logits(tokens)
    model = of_transformers(open_checkpoint(str(path)), folder)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    return float(np.abs(logits - expected).max() / expected.std())


#: ggml looks GELU up in a table of float16.
LIMIT = 2e-3


def test_every_architecture_is_here() -> None:
    kinds = {*MODELS, *EMBEDDERS, *test_gguf_encoder_decoder.KINDS}
    models = _known()["models"].items()
    assert kinds == {entry.get("model_type", kind) for kind, entry in models}
    alone = {layouts()[kind].architecture for kind in kinds}
    assert alone == {layout.architecture for layout in layouts().values()}


def llama3_factors(
    size: int, theta: float, factor: float = 32, high: float = 4, context: int = 8192
) -> Array:
    """Give the factors that converters make of Llama 3's scaling."""
    waves = 2 * np.pi * theta ** (np.arange(0, size, 2) / size)
    smooth = np.clip((context / waves - 1) / (high - 1), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


#: Factors of RoPE in files of a type.
FACTORS: dict[str, dict[str, Array]] = {
    "gemma4_text": {"rope_freqs.weight": np.repeat(np.float32([1, 1e30]), [4, 12])},
    "llama": {"rope_freqs.weight": llama3_factors(24, 500000.0)},
}


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_file_alone_computes_what_llama_cpp_computes(
    home: Path, tmp_path: Path, kind: str
) -> None:
    folder = make(tmp_path / "model", kind)
    path = write(tmp_path / "model.gguf", folder, {**FACTORS.get(kind, {})})
    assert difference(path, tmp_path / "again") < LIMIT


#: Architectures of llama.cpp that are another type here: language models of multimodal ones, and others under a name
#: of their own. Type, changes of its configuration, metadata.
LANGUAGE_MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "baichuan": ("llama", {**rope(), "num_hidden_layers": 32, "head_dim": 16}, {}),
    "gemma4": (
        "gemma4_text",
        {
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            **windows(2, layers=6),
        },
        {"expert_count": None, "expert_used_count": None, "expert_feed_forward_length": None},
    ),
    "internlm2": ("llama", {**rope(), "head_dim": 16}, {}),
    "nemotron_h_moe": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 1.7,
        },
        {},
    ),
    "qwen2vl": (
        "qwen2",
        {},
        {
            "rope__dimension_sections": [2, 3, 3, 0],
            "attention__layer_norm_rms_epsilon": 1e-6,  # llama.cpp has no other for it
        },
    ),
    "qwen3vl": ("qwen3", {}, {"rope__dimension_sections": [4, 4, 4, 0], "n_deepstack_layers": 0}),
    "qwen3vlmoe": (
        "qwen3_moe",
        {},
        {"rope__dimension_sections": [4, 4, 4, 0], "n_deepstack_layers": 0},
    ),
}


@pytest.mark.parametrize("architecture", LANGUAGE_MODELS)
def test_a_model_under_another_name_computes_what_llama_cpp_computes(
    home: Path, tmp_path: Path, architecture: str
) -> None:
    kind, own, changes = LANGUAGE_MODELS[architecture]
    folder = make(tmp_path / "model", kind, **own)
    extra = FACTORS[kind] if architecture == "gemma4" else {}
    path = write(tmp_path / "model.gguf", folder, extra, architecture=architecture, **changes)
    assert difference(path, tmp_path / "again") < LIMIT
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    read = {"checkpoint": folder, "gguf": [path]}
    (folder / "model.safetensors").unlink()
    for name, value in load_model(read, TEXT_GENERATION, None).state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_fused_heads_are_taken_apart(home: Path, tmp_path: Path) -> None:
    """GLM's first releases have one matrix of queries, keys and values."""
    folder = make(tmp_path / "model", "glm")
    apart = open_checkpoint(str(write(tmp_path / "apart.gguf", folder)))
    tensors = stored(folder)
    for end in ("weight", "bias"):
        for at in range(4):
            parts = [tensors.pop(f"blk.{at}.attn_{one}.{end}") for one in "qkv"]
            tensors[f"blk.{at}.attn_qkv.{end}"] = np.concatenate(parts)
    path = write(tmp_path / "fused.gguf", folder, tensors=tensors)
    fused = open_checkpoint(str(path))
    assert fused.config == apart.config
    assert fused.logical.keys() == apart.logical.keys()
    for name in fused.logical:
        one, other = (
            rows(each.values.get(name, name), each.read, each.tensors) for each in (fused, apart)
        )
        assert np.array_equal(one, other), name
    assert difference(path, tmp_path / "again") < LIMIT
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    (folder / "model.safetensors").unlink()
    found = load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None).state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_layers_that_share_keys_and_values(home: Path, tmp_path: Path) -> None:
    """llama.cpp's layers from the 21st on share those of the 19th and 20th, and the first 10 are sparse."""
    changes = {"num_hidden_layers": 22, "num_kv_shared_layers": 2, **windows(5, layers=22)}
    sparse = [0.95] * 10 + [0.0] * 12
    folder = make(tmp_path / "model", "gemma3n_text", activation_sparsity_pattern=sparse, **changes)
    tensors = load_file(folder / "model.safetensors")
    small = [
        f".layers.{at}." for at in range(17)
    ]  # lest differences of GELU grow from layer to layer
    for name in tensors:
        if "post_" in name and any(one in name for one in small):
            tensors[name] *= np.float32(0.05)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = write(tmp_path / "model.gguf", folder)
    assert difference(path, tmp_path / "again") < LIMIT
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    (folder / "model.safetensors").unlink()
    read = {"checkpoint": folder, "gguf": [path]}
    for name, value in load_model(read, TEXT_GENERATION, None).state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_multipliers_in_the_weights_are_not_applied_again(home: Path, tmp_path: Path) -> None:
    multipliers = {
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.4,
        "mlp_multipliers": [0.7, 1.4],
        "attention_in_multiplier": 0.8,
        "attention_out_multiplier": 1.3,
        "key_multiplier": 0.6,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.8, 1.2, 0.7, 1.4, 0.6],
    }
    folder = make(tmp_path / "model", "falcon_h1", **multipliers, mamba_rms_norm=False)
    path = write(tmp_path / "model.gguf", folder)
    assert difference(path, tmp_path / "again") < LIMIT
    tokens = torch.arange(3, 40)[None]
    one, other = (
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32).eval()(tokens).logits
        for each in (folder, tmp_path / "again")
    )
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * one.std().item())
    with pytest.raises(ZooError, match=r"multipliers .* attention_in_multiplier 0\.8"):
        open_checkpoint(str(path), config_from=str(folder))


def test_draft_layers_behind_the_model_are_left_out(home: Path, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "glm4_moe")
    plain = open_checkpoint(str(write(tmp_path / "plain.gguf", folder)))
    draft = {f"blk.4.nextn.{one}.weight": np.ones(64, np.float32) for one in ("enorm", "hnorm")}
    changes = {"block_count": 5, "nextn_predict_layers": 1}
    path = write(tmp_path / "drafts.gguf", folder, draft, **changes)
    with_drafts = open_checkpoint(str(path))
    assert with_drafts.config == plain.config
    assert with_drafts.logical.keys() == plain.logical.keys()
    load_model({"checkpoint": folder, "gguf": [path]}, TEXT_GENERATION, None)


def test_refused_architectures_are_llama_cpp_s_and_read_by_no_layout() -> None:
    known = {one for layout in layouts().values() for one in layout.architectures}
    assert not set(REFUSED) & known
    assert all(reason.endswith(".") for reason in REFUSED.values())
    assert {*REFUSED} - {"deepseek4"} <= {*gguf.MODEL_ARCH_NAMES.values()}  # gguf-py is older


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("phimoe", REFUSED["phimoe"]), ("xyz", "It is unknown.")],
)
def test_a_file_that_is_not_read_has_a_reason(
    home: Path, tmp_path: Path, architecture: str, reason: str
) -> None:
    path = write(
        tmp_path / "model.gguf", make(tmp_path / "model", "qwen3"), architecture=architecture
    )
    with pytest.raises(
        ZooError, match=f"architecture '{architecture}', which is not read"
    ) as caught:
        open_checkpoint(str(path))
    assert reason in str(caught.value)
    assert "Use the safetensors checkpoint" in str(caught.value)


def test_metadata_that_fit_no_model_of_an_architecture_are_named(
    home: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path / "model", "deepseek_v3")
    path = write(tmp_path / "model.gguf", folder, expert_gating_func=1)
    with pytest.raises(ZooError, match=r"deepseek2\.expert_gating_func 1 in place of 2") as caught:
        open_checkpoint(str(path))
    assert "unknown" not in str(caught.value)
    # transformers computes no other biases
    path = write(
        tmp_path / "mpt.gguf", make(tmp_path / "mpt", "mpt"), attention__max_alibi_bias=16.0
    )
    with pytest.raises(ZooError, match=r"mpt\.attention\.max_alibi_bias 16\.0 in place of 8\.0"):
        open_checkpoint(str(path))
    heads = [2, 2, 0, 0, 2]
    folder = make(tmp_path / "jamba", "jamba")
    path = write(tmp_path / "jamba.gguf", folder, attention__head_count_kv=heads)
    with pytest.raises(ZooError, match=r"attn in the layers \[0, 1, 4\] has unequal intervals"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("pooling", "number"), [("mean", 1), ("cls", 2), ("lasttoken", 3)])
@pytest.mark.parametrize("kind", sorted(EMBEDDERS))
def test_an_embedder_alone_embeds_as_llama_cpp_does(
    home: Path, tmp_path: Path, kind: str, pooling: str, number: int
) -> None:
    path = write(tmp_path / "model.gguf", make(tmp_path / "model", kind), pooling_type=number)
    tokens = np.random.default_rng(1).integers(0, 256, 40).tolist()
    with opened(path) as llama:
        expected = llama.embedding(tokens)
    checkpoint = open_checkpoint(str(path))
    assert read_pooling(checkpoint.companions) == (pooling, True)
    model = of_transformers(checkpoint, tmp_path / "again")
    with torch.no_grad():
        states = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    pooled = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling]
    assert np.abs(pooled - expected).max() < LIMIT * expected.std()


@pytest.mark.parametrize("dense", [False, True])
def test_an_embedding_gemma_alone_embeds_as_llama_cpp_does(
    home: Path, tmp_path: Path, dense: bool
) -> None:
    folder = make(tmp_path / "model", "gemma3_text")
    changes = {"attention__sliding_window": 10, "pooling_type": 1, "attention__causal": False}
    random = np.random.default_rng(2)
    layers = {"dense_2": (128, 64), "dense_3": (64, 128)} if dense else {}
    extra = {f"{name}.weight": random.standard_normal(shape) for name, shape in layers.items()}
    for name, (rows_, columns) in layers.items():
        changes |= {f"{name}_feat_in": columns, f"{name}_feat_out": rows_}
    path = write(tmp_path / "model.gguf", folder, extra, architecture="gemma-embedding", **changes)
    tokens = np.random.default_rng(1).integers(0, 256, 40).tolist()
    with opened(path) as llama:
        expected = llama.embedding(tokens)
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.architectures == ("Gemma3TextModel",)
    found = read_pooling(checkpoint.companions)
    assert found is not None
    assert found == ("mean", True)
    steps = bindings_of(read_steps(checkpoint.companions))
    assert sorted(steps.values()) == sorted(name for name in checkpoint.logical if "Dense" in name)
    assert len(steps) == len(layers)
    model = of_transformers(checkpoint, tmp_path / "again", AutoModel)
    assert model.config.sliding_window == 6  # as transformers takes it of a bidirectional model
    with torch.no_grad():
        states = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    embedding = states.mean(0)
    for name in sorted(name for name in checkpoint.logical if "Dense" in name):
        embedding = rows(checkpoint.values[name], checkpoint.read, checkpoint.tensors) @ embedding
    assert np.abs(embedding - expected).max() < LIMIT * expected.std()


def test_gates_may_stand_apart(home: Path, tmp_path: Path) -> None:
    """Older files of Jina's embedders have gates and ups as two tensors."""
    folder = make(tmp_path / "model", "jina_bert")
    fused = open_checkpoint(str(write(tmp_path / "fused.gguf", folder)))
    tensors = stored(folder)
    for at in range(3):
        both = tensors.pop(f"blk.{at}.ffn_up.weight")
        tensors[f"blk.{at}.ffn_gate.weight"], tensors[f"blk.{at}.ffn_up.weight"] = np.split(both, 2)
    path = write(tmp_path / "apart.gguf", folder, tensors=tensors)
    apart = open_checkpoint(str(path))
    name = "encoder.layer.1.mlp.gated_layers.weight"
    one, other = (
        rows(each.values.get(name, name), each.read, each.tensors) for each in (fused, apart)
    )
    assert np.array_equal(one, other)
    tokens = [5, 6, 7, 8]
    found = []
    for file in ("fused", "apart"):
        with opened(tmp_path / f"{file}.gguf") as llama:
            found.append(llama.embedding(tokens))
    np.testing.assert_allclose(*found, atol=1e-3)
    expected = AutoModel.from_pretrained(folder, dtype=torch.float32).state_dict()[name]
    (folder / "model.safetensors").unlink()
    for file in ("fused", "apart"):
        read = {"checkpoint": folder, "gguf": [tmp_path / f"{file}.gguf"]}
        assert torch.equal(load_model(read, FEATURE_EXTRACTION, None).state_dict()[name], expected)


def yarned(**changes: Any) -> dict[str, Any]:
    settings = {
        "scaling__type": "yarn",
        "scaling__factor": 4.0,
        "scaling__original_context_length": 64,
    }
    return {f"rope__{key}": value for key, value in {**settings, **changes}.items()}


YARN = (
    *("type", "factor", "original_context_length", "yarn_log_multiplier"),
    *("yarn_beta_fast", "yarn_beta_slow"),
)
#: Files of single types with other metadata, or further tensors, than the ones above.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Array]]] = {
    "numbers of heads are llama.cpp's": ("olmoe", {"attention__head_count_kv": None}, {}),
    "yarn": ("arcee", yarned(), {}),
    "linear by its old name": ("arcee", {"rope__scale_linear": 4.0}, {}),
    "no scaling": ("arcee", {"rope__scaling__type": "none"}, {}),
    "no window": ("gemma3_text", {"attention__sliding_window": None}, {}),
    "a pattern of windows": (
        "gemma3_text",
        {"attention__sliding_window_pattern": [True, False, True, True, False, True, False]},
        {},
    ),
    "an interval of windows": ("gemma2", {"attention__sliding_window_pattern": 3}, {}),
    "no temperature": (
        "ministral3",
        {
            "attention__temperature_scale": None,
            **{f"rope__scaling__{one}": None for one in YARN},
        },
        {},
    ),
    "another local theta": ("gemma3_text", {"rope__freq_base_swa": 500.0}, {}),
    "factors of one": ("llama", {}, {"rope_freqs.weight": np.ones(12, np.float32)}),
    "other factors of Llama 3": (
        "llama",
        {"rope__freq_base": 300.0},
        {"rope_freqs.weight": llama3_factors(24, 300.0, factor=5, high=3, context=600)},
    ),
    "factors for short contexts": (
        "phi3",
        {
            "context_length": 1024,
            "rope__scaling__original_context_length": 256,
            "rope__scaling__attn_factor": 1.1180341,
        },
        {
            "rope_factors_short.weight": np.linspace(1, 2, 12, dtype=np.float32),
            "rope_factors_long.weight": np.linspace(1, 9, 12, dtype=np.float32),
        },
    ),
}


@pytest.mark.parametrize(("kind", "changes", "extra"), CASES.values(), ids=list(CASES))
def test_other_files_of_single_types(
    home: Path, tmp_path: Path, kind: str, changes: dict[str, Any], extra: dict[str, Array]
) -> None:
    path = write(tmp_path / "model.gguf", make(tmp_path / "model", kind), extra, **changes)
    assert difference(path, tmp_path / "again") < LIMIT


def test_what_is_in_neither_is_named(home: Path, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "llama")
    rope_factors = {"rope_freqs.weight": np.linspace(1, 3, 12, dtype=np.float32)}
    for changes, extra, named in (
        ({"feed_forward_length": None}, {}, "its metadata lack llama.feed_forward_length"),
        ({"router_temperature": 2.0}, {}, "its metadata llama.router_temperature"),
        ({"attention__value_length": 8}, {}, "key_length 24 and value_length 8"),
        ({"attention__head_count": 0}, {}, "llama.attention.head_count: 0. Expected one size"),
        ({"attention__head_count_kv": "2"}, {}, "head_count_kv: '2'. Expected one number"),
        ({"feed_forward_length": [96] * 4}, {}, "llama.feed_forward_length: values by layer"),
        ({}, rope_factors, "factors of RoPE that no scaling of Llama 3 has"),
    ):
        path = write(tmp_path / f"{len(named)}.gguf", folder, extra, **changes)
        with pytest.raises(ZooError, match="--config-from") as caught:
            open_checkpoint(str(path))
        assert named in str(caught.value)


def test_a_configuration_that_differs_from_the_file_is_warned_of(
    home: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path / "model", "qwen3")
    path = write(folder / "model.gguf", folder)
    (folder / "model.safetensors").unlink()
    open_checkpoint(str(path))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 1e6
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    with pytest.warns(UserWarning, match=r"rms_norm_eps 0\.001 in the file and 1e-05") as caught:
        checkpoint = open_checkpoint(str(path))
    assert "rope_theta 5000.0 in the file and 1000000.0 in the configuration" in str(
        caught[0].message
    )
    assert checkpoint.config["rms_norm_eps"] == 1e-5


def test_an_answer_ends_where_llama_cpp_ends_it(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", make(tmp_path / "model", "qwen3"))
    checkpoint = open_checkpoint(str(path))
    with opened(path, vocabulary_only=True) as llama:
        ends = [number for number in range(VOCABULARY) if llama.ends(number)]
    assert checkpoint.config["eos_token_id"] == 257
    assert sorted(checkpoint.generation_config["eos_token_id"]) == ends


@pytest.mark.parametrize("kind", sorted({*MODELS, *EMBEDDERS}))
@pytest.mark.sampled(3)
def test_the_reference_reads_every_architecture(tmp_path: Path, kind: str) -> None:
    folder = make(tmp_path / "model", kind)
    path = write(tmp_path / "model.gguf", folder)
    task, auto = TEXT_GENERATION, AutoModelForCausalLM
    if kind in EMBEDDERS:
        task, auto = FEATURE_EXTRACTION, AutoModel
    expected = auto.from_pretrained(folder, dtype=torch.float32).state_dict()
    (folder / "model.safetensors").unlink()
    found = load_model({"checkpoint": folder, "gguf": [path]}, task, None).state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not name.startswith("pooler."):
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
