# SPDX-License-Identifier: Apache-2.0
"""Facts of architectures that exports are known to drop: name -> tiny config, and the change that drops it there.

The change is of the configuration (`FACTS`), or of Hugging Face's model where no configuration says it (`MUTATIONS`).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from qeff_zoo.registry import find_recipe


def _rope(model_type: str) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = find_recipe(model_type).tiny[0].config["rope_parameters"]
    return parameters


_LLAMA_ROPE = _rope("llama")
_OTHER_ROPE = {**_LLAMA_ROPE, "rope_theta": 2000.0}
FACTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma2: soft-cap on scores": ("gemma2-base", {"attn_logit_softcapping": None}),
    "gemma2: soft-cap on logits": ("gemma2-base", {"final_logit_softcapping": None}),
    "gemma2: window": ("gemma2-base", {"sliding_window": 4096}),
    "gemma2: alternating layers": ("gemma2-base", {"layer_types": ["full_attention"] * 4}),
    "gemma2: query scale": ("gemma2-base", {"query_pre_attn_scalar": 24}),
    "gemma3: local RoPE base": (
        "gemma3_text-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            }
        },
    ),
    "gemma3: scaled RoPE of full layers": (
        "gemma3_text-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        },
    ),
    "gemma3: window": ("gemma3_text-base", {"sliding_window": 4096}),
    "gemma3: order of the layers": (
        "gemma3_text-base",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    "mistral: window": ("mistral-base", {"sliding_window": None}),
    "mixtral: window": ("mixtral-base", {"sliding_window": None}),
    "mixtral: experts per token": ("mixtral-base", {"num_experts_per_tok": 1}),
    "qwen2: window": ("qwen2-base", {"use_sliding_window": False, "layer_types": None}),
    "qwen2: where windows begin": (
        "qwen2-base",
        {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
    ),
    "qwen3: window": ("qwen3-base", {"use_sliding_window": False, "layer_types": None}),
    "falcon: ALiBi": ("falcon-alibi", {"alibi": False}),
    "falcon: RoPE": ("falcon-base", {"alibi": True}),
    "gpt2: scale by layer": (
        "gpt2-inverse_layer_idx",
        {"scale_attn_by_inverse_layer_idx": False},
    ),
    "llama: RoPE scaling": (
        "llama-base",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    ),
    "llama: RoPE base": (
        "llama-base",
        {"rope_parameters": _OTHER_ROPE},
    ),
    "gemma: epsilon of norms": ("gemma-base", {"rms_norm_eps": 1e-6}),
    "glm: partial RoPE": (
        "glm-base",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "glm4: partial RoPE": (
        "glm4-base",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "granite: multiplier of embeddings": ("granite-base", {"embedding_multiplier": 1.0}),
    "granite: multiplier of scores": ("granite-base", {"attention_multiplier": 0.25}),
    "granite: multiplier of residuals": ("granite-base", {"residual_multiplier": 1.0}),
    "granite: divisor of logits": ("granite-base", {"logits_scaling": 1.0}),
    "granitemoe: multiplier of scores": ("granitemoe-base", {"attention_multiplier": 0.25}),
    "granitemoe: divisor of logits": ("granitemoe-base", {"logits_scaling": 1.0}),
    "granitemoe: experts per token": ("granitemoe-base", {"num_experts_per_tok": 1}),
    "cohere: scale of logits": ("cohere-base", {"logit_scale": 1.0}),
    "cohere2: window": ("cohere2-base", {"sliding_window": 4096}),
    "cohere2: layers without positions": (
        "cohere2-base",
        {"layer_types": ["sliding_attention"] * 4, "sliding_window": 4096},
    ),
    "cohere2: scale of logits": ("cohere2-base", {"logit_scale": 1.0}),
    "cohere2_moe: window": ("cohere2_moe-base", {"sliding_window": 4096}),
    "cohere2_moe: RoPE of dense layers": (
        "cohere2_moe-base",
        {"prefix_dense_sliding_window_pattern": 4},
    ),
    "cohere2_moe: softmax over the chosen experts": (
        "cohere2_moe-base",
        {"expert_selection_fn": "sigmoid"},
    ),
    "cohere2_moe: mean of routed and shared experts": (
        "cohere2_moe-sigmoid",
        {"shared_expert_combination_strategy": "sum"},
    ),
    "cohere2_moe: normalized sigmoid": ("cohere2_moe-sigmoid", {"norm_topk_prob": False}),
    "exaone4: window": ("exaone4-base", {"sliding_window": 4096}),
    "exaone4: layers without positions": (
        "exaone4-base",
        {"layer_types": ["sliding_attention"] * 4, "sliding_window": 4096},
    ),
    "exaone4: RoPE where there is no window": (
        "exaone4-full",
        {"sliding_window": 4096},
    ),
    "arcee: YaRN": (
        "arcee-base",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    ),
    "arcee: squared ReLU": ("arcee-base", {"hidden_act": "relu"}),
    "bitnet: squared ReLU": ("bitnet-base", {"hidden_act": "relu"}),
    "cwm: window": ("cwm-base", {"sliding_window": 4096}),
    "cwm: order of the layers": (
        "cwm-base",
        {"layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "ernie4_5: RoPE base": (
        "ernie4_5-base",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    ),
    "glm4_moe: partial RoPE": (
        "glm4_moe-base",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "glm4_moe: scale of routing weights": ("glm4_moe-base", {"routed_scaling_factor": 1.0}),
    "glm4_moe: groups of experts": ("glm4_moe-base", {"topk_group": 2}),
    "glm4_moe: normalized routing weights": ("glm4_moe-base", {"norm_topk_prob": False}),
    "deepseek_v3: scale of routing weights": ("deepseek_v3-base", {"routed_scaling_factor": 1.0}),
    "deepseek_v3: groups of experts": ("deepseek_v3-base", {"topk_group": 2}),
    "deepseek_v3: interleaved RoPE": ("deepseek_v3-base", {"rope_interleave": False}),
    "deepseek_v2: scale of routing weights": ("deepseek_v2-base", {"routed_scaling_factor": 1.0}),
    "deepseek_v2: groups of experts": ("deepseek_v2-base", {"topk_method": "greedy"}),
    "ernie4_5_moe: experts per token": ("ernie4_5_moe-base", {"moe_k": 1}),
    "exaone_moe: window": ("exaone_moe-base", {"sliding_window": 4096}),
    "exaone_moe: scale of routing weights": ("exaone_moe-base", {"routed_scaling_factor": 1.0}),
    "exaone_moe: groups of experts": ("exaone_moe-base", {"topk_group": 2}),
    "dots1: window": ("dots1-base", {"sliding_window": 4096}),
    "dots1: scale of routing weights": ("dots1-base", {"routed_scaling_factor": 1.0}),
    "dots1: groups of experts": ("dots1-base", {"topk_group": 2}),
    "flex_olmo: unnormalized routing weights": ("flex_olmo-base", {"norm_topk_prob": True}),
    "afmoe: window": ("afmoe-base", {"sliding_window": 4096}),
    "afmoe: scale of routing weights": ("afmoe-base", {"route_scale": 1.0}),
    "afmoe: scale of embeddings": ("afmoe-base", {"mup_enabled": False}),
    "gpt_neox: partial RoPE": (
        "gpt_neox-base",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "gpt_neox: parallel residual": ("gpt_neox-base", {"use_parallel_residual": False}),
    "gptj: partial RoPE": ("gptj-base", {"rotary_dim": 32}),
    "codegen: partial RoPE": ("codegen-base", {"rotary_dim": 32}),
    "gpt_oss: window": ("gpt_oss-base", {"sliding_window": 4096}),
    "gpt_oss: limit of the gate": ("gpt_oss-base", {"swiglu_limit": 7.0}),
    "gpt_oss: order of the layers": (
        "gpt_oss-base",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    "biogpt: scale of embeddings": ("biogpt-base", {"scale_embedding": False}),
    "gpt_neo: window": ("gpt_neo-base", {"window_size": 64}),
    "granite_swa: window": ("granite_swa-base", {"sliding_window": 4096}),
    "granite_swa: layers without positions": (
        "granite_swa-base",
        {"layer_rope_theta": [100.0] * 4},
    ),
    "granite_swa: RoPE base of a layer": (
        "granite_swa-base",
        {"layer_rope_theta": [0.0, 1000.0] * 2},
    ),
    "granitemoe_swa: window": ("granitemoe_swa-base", {"sliding_window": 4096}),
    "bloom: residual after the norm": (
        "bloom-post_layernorm",
        {"apply_residual_connection_post_layernorm": False},
    ),
    "gemma4: soft-cap on logits": ("gemma4_text-base", {"final_logit_softcapping": None}),
    "gemma4: window": ("gemma4_text-base", {"sliding_window": 4096}),
    "gemma4: partial RoPE of full layers": (
        "gemma4_text-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 1.0,
                },
            }
        },
    ),
    "gemma4: experts per token": ("gemma4_text-experts", {"top_k_experts": 1}),
    "flint: window": ("flint-base", {"sliding_window": 4096}),
    "flint: normalized routing weights": ("flint-base", {"norm_topk_prob": False}),
    "bloom: epsilon of norms": ("bloom-base", {"layer_norm_epsilon": 1e-5}),
    "diffllama: epsilon of norms": ("diffllama-base", {"rms_norm_eps": 1e-6}),
    "phi: partial RoPE": (
        "phi-base",
        {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "phi3: window": ("phi3-base", {"sliding_window": None}),
    "phi3: partial RoPE": (
        "phi3-base",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "phi3: longrope": (
        "phi3-longrope",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.75,
            }
        },
    ),
    "phimoe: window": ("phimoe-base", {"sliding_window": None}),
    "phimoe: scores near the best": ("phimoe-base", {"router_jitter_noise": 0.0}),
    "qwen2_moe: window": ("qwen2_moe-base", {"layer_types": ["full_attention"] * 4}),
    "qwen2_moe: routing weights not renormalized": ("qwen2_moe-base", {"norm_topk_prob": True}),
    "qwen3_moe: window": ("qwen3_moe-base", {"use_sliding_window": False, "sliding_window": None}),
    "qwen3_moe: routing weights renormalized": ("qwen3_moe-base", {"norm_topk_prob": False}),
    "llama4: chunks": ("llama4_text-base", {"attention_chunk_size": 4096}),
    "llama4: layers without chunks": (
        "llama4_text-base",
        {"layer_types": ["chunked_attention"] * 4},
    ),
    "llama4: layers without RoPE": (
        "llama4_text-base",
        {"no_rope_layers": [1] * 4, "attn_temperature_tuning": False},
    ),
    "llama4: scale of queries by position": (
        "llama4_text-base",
        {"attn_temperature_tuning": False},
    ),
    "llama4: norm of queries and keys": ("llama4_text-base", {"use_qk_norm": False}),
    "starcoder2: window": ("starcoder2-base", {"sliding_window": None}),
    "stablelm: partial RoPE": (
        "stablelm-base",
        {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "smollm3: layers without RoPE": ("smollm3-base", {"no_rope_layers": [1] * 4}),
    "smollm3: window": (
        "smollm3-window",
        {"use_sliding_window": False, "layer_types": ["full_attention"] * 4},
    ),
    "olmo: clipped projections": ("olmo-clip", {"clip_qkv": None}),
    "olmo3: window": ("olmo3-base", {"sliding_window": 4096}),
    "olmo3: RoPE by kind of layer": (
        "olmo3-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            }
        },
    ),
    "olmoe: clipped projections": ("olmoe-base", {"clip_qkv": None}),
    "olmoe: routing weights not renormalized": ("olmoe-base", {"norm_topk_prob": True}),
    "nemotron: partial RoPE": (
        "nemotron-base",
        {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "nemotron: squared ReLU": ("nemotron-base", {"hidden_act": "relu"}),
    "persimmon: partial RoPE": (
        "persimmon-base",
        {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "jais2: squared ReLU": ("jais2-base", {"hidden_act": "relu"}),
    "ministral: order of the layers": (
        "ministral-base",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    "ministral3: window": ("ministral3-base", {"sliding_window": None}),
    "ministral3: scale of queries by position": (
        "ministral3-base",
        {
            "rope_parameters": {
                **_rope("ministral3"),
                "llama_4_scaling_beta": 0.0,
            }
        },
    ),
    "hunyuan: RoPE's alpha": (
        "hunyuan_v1_dense-base",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    ),
    "hunyuan: experts per token": ("hunyuan_v1_moe-base", {"moe_topk": [1] * 4}),
    "hyperclovax: multiplier of embeddings": ("hyperclovax-base", {"embedding_multiplier": 1.0}),
    "hyperclovax: multiplier of scores": ("hyperclovax-base", {"attention_multiplier": 0.2}),
    "hyperclovax: multiplier of residuals": ("hyperclovax-base", {"residual_multiplier": 1.0}),
    "hyperclovax: divisor of logits": ("hyperclovax-base", {"logits_scaling": 1.0}),
    "vaultgemma: soft-cap on scores": ("vaultgemma-base", {"attn_logit_softcapping": None}),
    "vaultgemma: soft-cap on logits": ("vaultgemma-base", {"final_logit_softcapping": None}),
    "vaultgemma: window": ("vaultgemma-base", {"sliding_window": 4096}),
    "mellum: window": ("mellum-base", {"sliding_window": 4096}),
    "mellum: RoPE by kind of layer": (
        "mellum-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            }
        },
    ),
    "laguna: soft-cap on router scores": ("laguna-base", {"moe_router_logit_softcapping": 0.0}),
    "laguna: scale of routing weights": ("laguna-base", {"moe_routed_scaling_factor": 1.0}),
    "laguna: window": ("laguna-base", {"sliding_window": 4096}),
    "minimax_m2: partial RoPE": (
        "minimax_m2-base",
        {
            "rope_parameters": {
                **_rope("minimax_m2"),
                "partial_rotary_factor": 1.0,
            }
        },
    ),
    "solar_open: scale of routing weights": ("solar_open-base", {"routed_scaling_factor": 1.0}),
    "solar_open: groups of experts": ("solar_open-base", {"topk_group": 3}),
    "solar_open: routing weights renormalized": ("solar_open-base", {"norm_topk_prob": False}),
    "hy_v3: scale of routing weights": ("hy_v3-base", {"router_scaling_factor": 1.0}),
    "kolibri1: layers without RoPE": (
        "kolibri1-base",
        {"sliding_window": 4096, "layer_types": ["sliding_attention"] * 4},
    ),
    "kolibri1: window": ("kolibri1-base", {"sliding_window": 4096}),
    "kolibri1: routing weights not renormalized": ("kolibri1-base", {"norm_topk_prob": True}),
    "mimo: scale of values": ("mimo_v2_flash-base", {"attention_value_scale": 1.0}),
    "mimo: window": ("mimo_v2_flash-base", {"sliding_window": 4096}),
    "mimo: groups of experts": ("mimo_v2_flash-base", {"topk_group": 3}),
    "minicpm3: scale of embeddings": ("minicpm3-base", {"scale_emb": 1}),
    "minicpm3: scale of residuals": ("minicpm3-base", {"scale_depth": 2.0}),
    "minicpm3: divisor of logits": ("minicpm3-base", {"dim_model_base": 64}),
    "youtu: interleaved RoPE": ("youtu-base", {"rope_interleave": False}),
    "nanochat: soft-cap on logits": ("nanochat-base", {"final_logit_softcapping": None}),
    "modernbert-decoder: window": ("modernbert-decoder-base", {"sliding_window": 4096}),
    "modernbert-decoder: RoPE by kind of layer": (
        "modernbert-decoder-base",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
            }
        },
    ),
    "mpt: scale of scores": ("mpt-base", {"attn_config": {"clip_qkv": 0.7}}),
    "mpt: clipped projections": ("mpt-base", {"attn_config": {"softmax_scale": 0.4}}),
    "phimoe: scale of a long context": (
        "phimoe-base",
        {
            "rope_parameters": {
                **find_recipe("phimoe").tiny[0].config["rope_parameters"],
                "long_mscale": 1.2,
            }
        },
    ),
    "falcon_h1: scale of the embeddings": ("falcon_h1-base", {"embedding_multiplier": 1.0}),
    "falcon_h1: scale of the head": ("falcon_h1-base", {"lm_head_multiplier": 1.0}),
    "falcon_h1: scale of keys": ("falcon_h1-base", {"key_multiplier": 1.0}),
    "falcon_h1: scale into attention": ("falcon_h1-base", {"attention_in_multiplier": 1.0}),
    "falcon_h1: scale out of attention": ("falcon_h1-base", {"attention_out_multiplier": 1.0}),
    "falcon_h1: scale into Mamba": ("falcon_h1-without_norm", {"ssm_in_multiplier": 1.0}),
    "falcon_h1: scale out of Mamba": ("falcon_h1-base", {"ssm_out_multiplier": 1.0}),
    "falcon_h1: scales within Mamba": ("falcon_h1-base", {"ssm_multipliers": [1.0] * 5}),
    "falcon_h1: scales of the MLP": ("falcon_h1-base", {"mlp_multipliers": [1.0, 1.0]}),
    "falcon_h1: norm after the gate": ("falcon_h1-base", {"mamba_norm_before_gate": True}),
    "granitemoehybrid: no positions": (
        "granitemoehybrid-base",
        {"position_embedding_type": "rope"},
    ),
    "granitemoehybrid: RoPE": ("granitemoehybrid-rope", {"position_embedding_type": None}),
    "granitemoehybrid: scale of scores": ("granitemoehybrid-base", {"attention_multiplier": 0.25}),
    "granitemoehybrid: residual scale": ("granitemoehybrid-base", {"residual_multiplier": 1.0}),
    "granitemoehybrid: scale of logits": ("granitemoehybrid-base", {"logits_scaling": 1.0}),
    "granitemoehybrid: embeddings": ("granitemoehybrid-base", {"embedding_multiplier": 1.0}),
    "jamba: experts per token": ("jamba-base", {"num_experts_per_tok": 1}),
    "kimi_linear: scale of routing weights": ("kimi_linear-base", {"routed_scaling_factor": 1.0}),
    "bailing_hybrid: bound of decay": ("bailing_hybrid-base", {"kda_lower_bound": -5.0}),
    "lfm2_moe: scale of routing weights": ("lfm2_moe-base", {"routed_scaling_factor": 1.0}),
    "lfm3: window": ("lfm3-base", {"sliding_window": 4096}),
    "minimax: window": ("minimax-base", {"sliding_window": None}),
    "minimax: residual of lightning attention": ("minimax-base", {"linear_attn_alpha_factor": 1}),
    "minimax: residual of attention": ("minimax-base", {"full_attn_alpha_factor": 1}),
    "minimax: scale of routing weights": ("minimax-base", {"mlp_beta_factor": 1}),
    "nemotron_h: scale of routing weights": ("nemotron_h-base", {"routed_scaling_factor": 1.0}),
    "nemotron_h: groups of experts": ("nemotron_h-base", {"n_group": 1}),
    "olmo_hybrid: negative eigenvalues": ("olmo_hybrid-base", {"linear_allow_neg_eigval": False}),
    "qwen3_next: routing weights renormalized": ("qwen3_next-base", {"norm_topk_prob": False}),
    "qwen3_5_text: partial RoPE": (
        "qwen3_5_text-base",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    ),
    "recurrent_gemma: window": ("recurrent_gemma-base", {"attention_window_size": 4096}),
    "recurrent_gemma: soft-cap on logits": ("recurrent_gemma-base", {"logits_soft_cap": 30.0}),
    "zamba2: RoPE": ("zamba2-base", {"use_mem_rope": False}),
    "zaya: window": ("zaya-base", {"sliding_window": 4096}),
    "inkling_text: scale of logits": ("inkling_text-base", {"logits_mup_width_multiplier": 1.0}),
    "inkling_text: scale of routing weights": ("inkling_text-base", {"route_scale": 1.0}),
    "inkling_text: scale of long contexts": ("inkling_text-base", {"log_scaling_n_floor": None}),
    "deepseek_v32: number of selected keys": ("deepseek_v32-base", {"index_topk": 4096}),
    "deepseek_v32: scale of routing weights": ("deepseek_v32-base", {"routed_scaling_factor": 1.0}),
    "glm_moe_dsa: number of selected keys": ("glm_moe_dsa-base", {"index_topk": 4096}),
    "glm_moe_dsa: scale of routing weights": ("glm_moe_dsa-base", {"routed_scaling_factor": 1.0}),
    "dbrx: clipped queries, keys and values": (
        "dbrx-base",
        {"attn_config": {"kv_n_heads": 2, "clip_qkv": 1e6, "rope_theta": 1000.0}},
    ),
    "dbrx: norm of routing weights": (
        "dbrx-base",
        {
            "ffn_config": {
                "ffn_hidden_size": 96,
                "moe_num_experts": 5,
                "moe_top_k": 2,
                "moe_normalize_expert_weights": 1.0,
            }
        },
    ),
    "gemma3n: window": ("gemma3n_text-base", {"sliding_window": 4096}),
    "gemma3n: sparse MLPs": ("gemma3n_text-base", {"activation_sparsity_pattern": [0.0] * 6}),
    "gemma3n: soft-cap on logits": ("gemma3n_text-base", {"final_logit_softcapping": 1e3}),
    "gemma3n: active stream": ("gemma3n_text-base", {"altup_active_idx": 0}),
    "gemma3n: scale of the corrected stream": ("gemma3n_text-base", {"altup_correct_scale": False}),
    "gemma3n: epsilon of norms": ("gemma3n_text-base", {"rms_norm_eps": 1e-6}),
    "gemma4: window of shared keys": ("gemma4_text-shared", {"sliding_window": 4096}),
    "gemma4: soft-cap on logits, shared keys": (
        "gemma4_text-shared",
        {"final_logit_softcapping": None},
    ),
    "longcat_flash: scale of routing weights": (
        "longcat_flash-base",
        {"routed_scaling_factor": 1.0},
    ),
    "longcat_flash: experts per token": ("longcat_flash-base", {"moe_topk": 2}),
    "doge: keys that are kept": ("doge-base", {"keep_window_size": 128}),
    "doge: window": ("doge-whole", {"sliding_window": None}),
    "beam: window": ("beam-base", {"sliding_window": 4096}),
    "beam: soft-cap on logits": ("beam-base", {"final_logit_softcapping": 1e3}),
    "beam: scale of routing weights": ("beam-base", {"routed_scaling_factor": 1.0}),
    "cohere_compass: window": ("cohere_compass_text-base", {"sliding_window": 4096}),
    "cohere_compass: scale of logits": ("cohere_compass_text-base", {"logit_scale": 1.0}),
    "axk2: number of selected keys": ("axk2-base", {"index_topk": 4096}),
    "axk2: groups of experts": ("axk2-base", {"n_group": None, "topk_group": None}),
    "axk1: scale of routing weights": ("axk1-base", {"routed_scaling_factor": 1.0}),
    "glm4_moe_lite: scale of routing weights": (
        "glm4_moe_lite-base",
        {"routed_scaling_factor": 1.0},
    ),
    "gemma4_unified: soft-cap on logits": (
        "gemma4_unified_text-base",
        {"final_logit_softcapping": None},
    ),
    "gemma4_unified: window": ("gemma4_unified_text-base", {"sliding_window": 4096}),
    "gpt_bigcode: scale of scores": ("gpt_bigcode-base", {"scale_attn_weights": False}),
    "gpt_neox_japanese: partial RoPE": (
        "gpt_neox_japanese-base",
        {"rope_parameters": {"rope_theta": 1000.0, "partial_rotary_factor": 1.0}},
    ),
    "granitemoeshared: multiplier of residuals": (
        "granitemoeshared-base",
        {"residual_multiplier": 1.0},
    ),
    "helium: RoPE base": ("helium-base", {"rope_parameters": _OTHER_ROPE}),
    "bamba: RoPE base": ("bamba-base", {"rope_parameters": _OTHER_ROPE}),
    "hy_v4: number of selected keys": ("hy_v4-base", {"index_topk": 4096}),
    "hy_v4: streams": ("hy_v4-base", {"hc_magnitude": 1.0}),
    "hy_v4: limit of the gate": ("hy_v4-base", {"swiglu_limit": 7.0}),
    "falcon_mamba: norm of states": ("falcon_mamba-base", {"mixer_rms_eps": 1.0}),
    "xglm: scale of embeddings": ("xglm-base", {"scale_embedding": False}),
    "aria: experts per token": ("aria_text-base", {"moe_topk": 1}),
    "dots3_note: window": ("dots3_note_text-base", {"sliding_window": 4096}),
    "dots3_note: number of selected keys": ("dots3_note_text-base", {"index_topk": 4096}),
    "dots3_note: scale of routing weights": (
        "dots3_note_text-base",
        {"routed_scaling_factor": 1.0},
    ),
    "minimax_m3: number of selected blocks": (
        "minimax_m3_vl_text-base",
        {"index_topk_blocks": 4096},
    ),
    "minimax_m3: nearest block": ("minimax_m3_vl_text-base", {"index_local_blocks": 0}),
    "minimax_m3: size of blocks": ("minimax_m3_vl_text-base", {"index_block_size": 4}),
    "minimax_m3: limit of the gate": ("minimax_m3_vl_text-base", {"swiglu_limit": 7.0}),
    "minimax_m3: scale of routing weights": (
        "minimax_m3_vl_text-base",
        {"routed_scaling_factor": 1.0},
    ),
}


def weights(pattern: str, value: float) -> Callable[[Any], None]:
    """Make every parameter whose name ends so the same everywhere."""

    def change(model: Any) -> None:
        found = [
            tensor for name, tensor in model.named_parameters() if re.search(f"{pattern}$", name)
        ]
        assert found, pattern
        for parameter in found:
            parameter.fill_(value)

    return change


def attribute(kind: str, name: str, value: Any) -> Callable[[Any], None]:
    """Let every module of a class say something else."""

    def change(model: Any) -> None:
        found = [module for module in model.modules() if type(module).__name__ == kind]
        assert found, kind
        for module in found:
            assert getattr(module, name) != value
            setattr(module, name, value)

    return change


MUTATIONS: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "apertus: norm of queries": ("apertus-base", weights("q_norm.weight", 1)),
    "apertus: learned activation": ("apertus-base", weights("act_fn.alpha_p", 0)),
    "axk1: norm after experts": ("axk1-base", weights("post_mlp_layernorm.weight", 1)),
    "bamba: skip connection of the recurrence": ("bamba-base", weights("mamba.D", 0)),
    "ctrl: scale of embeddings": ("ctrl-base", attribute("CTRLModel", "d_model_size", 1)),
    "falcon_mamba: skip connection of the recurrence": ("falcon_mamba-base", weights("mixer.D", 0)),
    "granitemoeshared: shared MLP": (
        "granitemoeshared-base",
        weights("shared_mlp.output_linear.weight", 0),
    ),
    "jetmoe: bias of experts": ("jetmoe-base", weights("experts.bias", 0)),
    "lfm2: norm of queries": ("lfm2-base", weights("q_layernorm.weight", 1)),
    "lfm2: short convolution": ("lfm2-base", weights("conv.conv.weight", 1)),
    "mamba: skip connection of the recurrence": ("mamba-base", weights("mixer.D", 0)),
    "mamba: bias of steps": ("mamba-base", weights("dt_proj.bias", 0)),
    "mamba2: skip connection of the recurrence": ("mamba2-base", weights("mixer.D", 0)),
    "mamba2: decay": ("mamba2-base", weights("mixer.A_log", 0)),
    "olmo2: norm of queries": ("olmo2-base", weights("q_norm.weight", 1)),
    "opt: first position": ("opt-base", attribute("OPTLearnedPositionalEmbedding", "offset", 0)),
    "qwen3_5_moe_text: gate of the shared expert": (
        "qwen3_5_moe_text-base",
        weights("shared_expert_gate.weight", 0),
    ),
    "seed_oss: biases": ("seed_oss-base", weights("v_proj.bias", 0)),
    "zamba: shared attention": ("zamba-base", weights("self_attn.o_proj.weight", 0)),
    "zamba: skip connection of the recurrence": ("zamba-base", weights("mamba.D", 0)),
    "aria: shared experts": ("aria_text-base", weights("shared_experts.down_proj.weight", 0)),
    "dots3_note: norm of rotated keys": (
        "dots3_note_text-base",
        weights("k_rope_only_layernorm.weight", 1),
    ),
    "dots3_note: scale of latents": (
        "dots3_note_text-base",
        attribute("Dots3NoteTextAttention", "kv_lora_scale", 1.0),
    ),
    "dots3_note: gates of heads": ("dots3_note_text-base", weights("g_proj.weight", 0)),
    "minimax_m3: offset of norms": (
        "minimax_m3_vl_text-base",
        weights("post_attention_layernorm.weight", 0),
    ),
}
