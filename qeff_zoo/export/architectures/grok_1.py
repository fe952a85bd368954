# SPDX-License-Identifier: Apache-2.0
"""Grok-1 of xAI in the form of hpcai-tech/grok-1: a decoder with two experts of eight for each token.

Close to OLMoE: the routing probabilities of a token's experts do not add up to one. But queries and keys have no norms,
norms are before and after each block, attention scores have a soft-cap, and embeddings and logits are scaled.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, OlmoeConfig
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
from transformers.models.olmoe import modeling_olmoe as olmoe


class Grok1Config(OlmoeConfig):
    """OLMoE's config with the multipliers of Grok-1.

    Args:
        attn_output_multiplier: Factor of the attention scores.
        embedding_multiplier_scale: Factor of the embeddings.
        output_multiplier_scale: Factor of the logits.
        max_attn_value: Soft-cap on the attention scores.
    """

    model_type = "grok-1"
    default_theta = 10000.0
    hidden_act: str = "gelu"
    attn_output_multiplier: float = 1.0
    embedding_multiplier_scale: float = 1.0
    output_multiplier_scale: float = 1.0
    max_attn_value: float = 30.0


class Grok1Embedding(nn.Embedding):
    """Embeddings times a factor.

    Args:
        config: Config of the model.
    """

    def __init__(self, config: Grok1Config) -> None:
        super().__init__(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.scale = config.embedding_multiplier_scale

    def forward(self, input: Tensor) -> Tensor:
        """Return the scaled embeddings of token ids."""
        return super().forward(input) * self.scale


class Grok1Attention(olmoe.OlmoeAttention):
    """OLMoE's attention without norms of queries and keys, and with a soft-cap on the scores."""

    config: Grok1Config

    def __init__(self, config: Grok1Config, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        del self.q_norm, self.k_norm

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to earlier tokens."""
        projected = (self.q_proj(hidden_states), self.k_proj(hidden_states))
        query, key = (one.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in projected)
        value = self.v_proj(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key = olmoe.apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mixed, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.config.attn_output_multiplier,
            softcap=self.config.max_attn_value,
            **kwargs,
        )
        return self.o_proj(mixed.flatten(2)), weights


class Grok1DecoderLayer(nn.Module):
    """Attention and experts, with norms before and after each.

    Args:
        config: Config of the model.
        layer_idx: Index of the layer.
    """

    def __init__(self, config: Grok1Config, layer_idx: int) -> None:
        super().__init__()
        self.attn = Grok1Attention(config, layer_idx)
        self.moe_block = olmoe.OlmoeSparseMoeBlock(config)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_attn_norm = olmoe.OlmoeRMSNorm(size, eps)
        self.post_attn_norm = olmoe.OlmoeRMSNorm(size, eps)
        self.pre_moe_norm = olmoe.OlmoeRMSNorm(size, eps)
        self.post_moe_norm = olmoe.OlmoeRMSNorm(size, eps)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """Return the hidden states after the layer."""
        attended, _ = self.attn(self.pre_attn_norm(hidden_states), **kwargs)
        hidden_states = hidden_states + self.post_attn_norm(attended)
        mixed = self.moe_block(self.pre_moe_norm(hidden_states))
        result: Tensor = hidden_states + self.post_moe_norm(mixed)
        return result


class Grok1Model(olmoe.OlmoeModel):
    """OLMoE's model with `Grok1DecoderLayer` and scaled embeddings.

    Args:
        config: Config of the model.
    """

    config_class = Grok1Config
    _supports_sdpa = False  # it has no soft-cap

    def __init__(self, config: Grok1Config) -> None:
        super().__init__(config)
        self.embed_tokens = Grok1Embedding(config)
        self.layers = nn.ModuleList(
            Grok1DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.post_init()  # type: ignore[no-untyped-call]


class Grok1ModelForCausalLM(olmoe.OlmoeForCausalLM):
    """Scaled logits on `Grok1Model`.

    Args:
        config: Config of the model.
    """

    config: Grok1Config
    config_class = Grok1Config
    _supports_sdpa = False
    # transformers searches this module for a decorator, which is in OLMoE's.
    _can_set_experts_implementation_cached_value = True

    def __init__(self, config: Grok1Config) -> None:
        super().__init__(config)
        self.model = Grok1Model(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return OLMoE's output with scaled logits."""
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * self.config.output_multiplier_scale
        return output


def register() -> None:
    """Register config, model and names of weights with transformers."""
    AutoConfig.register("grok-1", Grok1Config, exist_ok=True)
    AutoModelForCausalLM.register(Grok1Config, Grok1ModelForCausalLM, exist_ok=True)
    experts = ".experts.*."
    mapping: list[WeightConverter | WeightRenaming] = [
        WeightRenaming(r"norm\.scale", "norm.weight"),
        WeightConverter(
            [f"{experts}linear.weight", f"{experts}linear_v.weight"],
            ".experts.gate_up_proj",
            [MergeModulelist(dim=0), Concatenate(dim=1)],
        ),
        WeightConverter(
            [f"{experts}linear_1.weight"], ".experts.down_proj", [MergeModulelist(dim=0)]
        ),
    ]
    register_checkpoint_conversion_mapping("grok-1", mapping, overwrite=True)
