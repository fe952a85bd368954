# SPDX-License-Identifier: Apache-2.0
"""What several tests of gguf alone and others use."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
import torch
from gguf_files import Array, parameters_of, stored
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from qeff_zoo.checkpoint.gguf.names import layouts
from qeff_zoo.export import architectures

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


#: Latent attention, and routed experts in groups.
LATENT: dict[str, Any] = {
    "rms_norm_eps": 1e-6,  # transformers has no other for latents
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
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
        **LATENT,
        "q_lora_rank": 24,
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
    "glm_moe_dsa": {
        **LATENT,
        **ROUTED,
        "q_lora_rank": 24,
        "num_hidden_layers": 5,
        "indexer_types": ["full", "shared", "full", "full", "shared"],
        "index_topk": 16,
        "index_head_dim": 64,  # llama.cpp rotates them by a Hadamard matrix of that size
        "index_n_heads": 14,
        "qk_rope_head_dim": 32,  # and takes half of them as rotated
        "routed_scaling_factor": 1.7,
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
    "kimi_linear": {
        **LATENT,
        "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "linear_conv_kernel_dim": 4,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.7,
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
SIGMOID = (
    *("afmoe", "deepseek_v3", "dots1", "exaone_moe", "glm4_moe", "glm_moe_dsa", "kimi_linear"),
    *("lfm2_moe", "minimax_m2"),
)


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
    if kind in ("deepseek_v3", "glm_moe_dsa", "kimi_linear"):
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
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
        }
        if scale := (getattr(config, "rope_parameters", None) or {}).get("mscale_all_dim"):
            found["rope.scaling.yarn_log_multiplier"] = 0.1 * scale
    if kind == "kimi_linear":
        found |= {
            "attention.head_count_kv": [int(one[0] == "f") for one in config.layer_types],
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_scale": config.routed_scaling_factor,
            "kda.head_dim": config.linear_head_dim,
            "leading_dense_block_count": config.mlp_layer_types.count("dense"),
            "rope.freq_base": 10000.0,
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
        }
        del found["attention.value_length"]
    if kind == "glm_moe_dsa":
        found |= {
            "attention.indexer.head_count": config.index_n_heads,
            "attention.indexer.key_length": config.index_head_dim,
            "attention.indexer.top_k": config.index_topk,
            "attention.indexer.types": [one == "full" for one in config.indexer_types],
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
                normal.inv_cdf(share) if share else -math.inf for share in shares
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
            "attention.head_count_kv": [2 if slide else keys for slide in slides],
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
