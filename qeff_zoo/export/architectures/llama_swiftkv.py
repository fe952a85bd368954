# SPDX-License-Identifier: Apache-2.0
"""SwiftKV on transformers' Llama (arXiv 2410.03960), as in Snowflake's ArcticTraining.

The first `num_key_value_layers` layers are Llama's. The keys and values of all layers after them are computed from one
hidden state, the input of the first of these layers, normalized by `norm_swiftkv`; `key_value_group_size` of them share
those of the first of each group. Only the queries are each layer's own. So prefill ends after the first layers: the
layers after them compute only the tokens whose logits are needed (`transforms.swiftkv`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as llama

_OWN = ("q_proj", "k_proj", "v_proj")


class LlamaSwiftKVConfig(LlamaConfig):
    """Llama's config with the layers that compute keys and values.

    Args:
        swiftkv: Whether the later layers work as described above; otherwise only training supports the model.
        num_key_value_layers: Number of first layers with their own keys and values; None for all.
        key_value_group_size: Number of later layers that share keys and values.
    """

    model_type = "llama_swiftkv"
    swiftkv: bool = True
    num_key_value_layers: int | None = None
    key_value_group_size: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_key_value_layers is None:
            self.num_key_value_layers = self.num_hidden_layers
        self.key_value_group_size = self.key_value_group_size or 1
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        later = self.num_hidden_layers - self.num_key_value_layers
        if not self.swiftkv:
            raise ValueError("swiftkv is false: its later layers have keys and values of their own")
        if later < 0 or self.num_key_value_layers < 1 or later % self.key_value_group_size:
            raise ValueError(
                f"num_key_value_layers is {self.num_key_value_layers} and key_value_group_size "
                f"{self.key_value_group_size}, but num_hidden_layers {self.num_hidden_layers}: the later layers are "
                "no whole groups"
            )


class SwiftKVAttention(llama.LlamaAttention):
    """Attention with its own queries; keys and values come from another hidden state, or from another layer.

    Args:
        config: Config of the model.
        layer_idx: Index of the layer, at least `num_key_value_layers`.
    """

    q_proj_swiftkv: nn.Linear
    k_proj_swiftkv: nn.Linear
    v_proj_swiftkv: nn.Linear

    def __init__(self, config: LlamaSwiftKVConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        assert config.num_key_value_layers is not None
        size = config.key_value_group_size or 1
        index = (layer_idx - config.num_key_value_layers) % size
        #: Whether it computes keys and values, and whether later layers share them.
        self.makes, self.gives = index == 0, size > 1
        for name in _OWN:
            if self.makes or name == "q_proj":
                setattr(self, f"{name}_swiftkv", getattr(self, name))
            delattr(self, name)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        swiftkv_states: Tensor,
        key_embeddings: tuple[Tensor, Tensor],
        shared: dict[str, tuple[Tensor, Tensor]],
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to keys and values of the whole text.

        Args:
            hidden_states: Hidden states of the queries, (batch, queries, hidden).
            position_embeddings: Cosines and sines of the queries.
            attention_mask: Mask of the queries.
            swiftkv_states: Source of keys and values, (batch, seq, hidden).
            key_embeddings: Cosines and sines of `swiftkv_states`.
            shared: Keys and values of the group, after its first layer.
            past_key_values: KV cache.
            **kwargs: Arguments of the attention interface.
        """
        query = _heads(self.q_proj_swiftkv(hidden_states), self.head_dim)
        query = _rotated(query, position_embeddings)
        if self.makes:
            key = _rotated(
                _heads(self.k_proj_swiftkv(swiftkv_states), self.head_dim), key_embeddings
            )
            value = _heads(self.v_proj_swiftkv(swiftkv_states), self.head_dim)
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.layer_idx)
            if self.gives:
                shared["group"] = key, value
        else:
            key, value = shared["group"]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, llama.eager_attention_forward
        )
        mixed, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, **kwargs
        )
        return self.o_proj(mixed.flatten(2)), weights


def _heads(states: Tensor, size: int) -> Tensor:
    """Return (batch, heads, seq, head_dim) of (batch, seq, heads * head_dim)."""
    return states.view(*states.shape[:-1], -1, size).transpose(1, 2)


def _rotated(heads: Tensor, embeddings: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate heads (batch, heads, seq, head_dim) by cosines and sines (batch, seq, head_dim)."""
    cos, sin = (embedding.unsqueeze(1) for embedding in embeddings)
    rotated: Tensor = heads * cos + llama.rotate_half(heads) * sin
    return rotated


class SwiftKVLayer(llama.LlamaDecoderLayer):
    """Llama's layer with SwiftKV attention.

    Args:
        config: Config of the model.
        layer_idx: Index of the layer, at least `num_key_value_layers`.
    """

    def __init__(self, config: LlamaSwiftKVConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.self_attn = SwiftKVAttention(config, layer_idx)


class LlamaSwiftKVModel(llama.LlamaModel):
    """Llama's model with `SwiftKVLayer` as later layers.

    Args:
        config: Config of the model.
    """

    config_class = LlamaSwiftKVConfig

    def __init__(self, config: LlamaSwiftKVConfig) -> None:
        super().__init__(config)
        assert config.num_key_value_layers is not None
        for index in range(config.num_key_value_layers, config.num_hidden_layers):
            self.layers[index] = SwiftKVLayer(config, index)
        self.norm_swiftkv = llama.LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Compute hidden states, like `LlamaModel`."""
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(hidden.shape[1], device=hidden.device) + past_length)[None]
        mask: Any = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        rope = self.rotary_emb(hidden, position_ids=position_ids)
        given = {"attention_mask": mask, "position_embeddings": rope, **kwargs}
        for layer in self.layers:
            if isinstance(layer, SwiftKVLayer) and "shared" not in given:
                states = self.norm_swiftkv(hidden)
                hidden, rope_of_queries, mask = self.going_on(hidden, rope, mask, past_key_values)
                given |= {"attention_mask": mask, "position_embeddings": rope_of_queries}
                given |= {"swiftkv_states": states, "key_embeddings": rope, "shared": {}}
            hidden = layer(hidden, past_key_values=past_key_values, **given)
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(hidden), past_key_values=past_key_values
        )

    def going_on(
        self, hidden: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, _: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor | None]:
        """Return the inputs of the later layers: hidden states, their cosines and sines, and their mask: here all."""
        return hidden, rope, mask


class LlamaSwiftKVForCausalLM(llama.LlamaForCausalLM):
    """Llama's head on `LlamaSwiftKVModel`.

    Args:
        config: Config of the model.
    """

    config_class = LlamaSwiftKVConfig
    # Training keeps the projections of the later layers' original attention.
    _keys_to_ignore_on_load_unexpected = [r"\.self_attn\.[qkv]_proj\."]  # noqa: RUF012

    def __init__(self, config: LlamaSwiftKVConfig) -> None:
        super().__init__(config)
        self.model = LlamaSwiftKVModel(config)
        self.post_init()  # type: ignore[no-untyped-call]


def register() -> None:
    """Register configuration and model with transformers."""
    AutoConfig.register("llama_swiftkv", LlamaSwiftKVConfig, exist_ok=True)
    AutoModelForCausalLM.register(LlamaSwiftKVConfig, LlamaSwiftKVForCausalLM, exist_ok=True)
