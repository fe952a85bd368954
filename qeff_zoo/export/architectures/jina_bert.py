# SPDX-License-Identifier: Apache-2.0
"""Jina's BERT of Jina Embeddings 2 (arXiv 2310.19923), as in jinaai/jina-bert-implementation and its variant for code.

Unlike BERT, it has no learned positions: ALiBi subtracts from each score the distance of the two tokens, in either
direction, times a slope of the head. MLPs are gated. In jinaai/jina-bert-v2-qk-post-norm, queries and keys are
normalized before they are cut into heads, and a norm more follows the attention; names and order of the gated
projection differ. Published config.json files have the model_type of BERT.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
)
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert as bert

#: Activation of the gate by `feed_forward_type`.
_GATES = {"geglu": "gelu", "reglu": "relu"}


class JinaBertConfig(BertConfig):
    """BERT's config with the kind of MLP.

    Args:
        feed_forward_type: Gated MLP: "geglu" or "reglu".
        position_embedding_type: Positions; only "alibi" is implemented.
        qk_norm: Whether the layers are those of jinaai/jina-bert-v2-qk-post-norm.
    """

    model_type = "jina_bert"
    feed_forward_type: str = "geglu"
    position_embedding_type: str = "alibi"
    qk_norm: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        if self.feed_forward_type not in _GATES:
            raise ValueError(f"feed_forward_type is {self.feed_forward_type!r}, not in {[*_GATES]}")
        if self.position_embedding_type != "alibi":
            raise ValueError(
                f"position_embedding_type is {self.position_embedding_type!r}, not 'alibi'"
            )


def slopes(heads: int) -> list[float]:
    """Return the ALiBi slope of each head: powers of two, and those between them beyond the largest power of two.

    Args:
        heads: Number of attention heads.
    """
    whole = 2 ** math.floor(math.log2(heads))
    between = [2.0 ** (-4 * (2 * number + 1) / whole) for number in range(heads - whole)]
    return [2.0 ** (-8 * (number + 1) / whole) for number in range(whole)] + between


class JinaBertEmbeddings(bert.BertEmbeddings):
    """BERT's embeddings without positions."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        del self.position_embeddings

    def forward(  # type: ignore[override]
        self, input_ids: Tensor | None = None, token_type_ids: Tensor | None = None, **inputs: Any
    ) -> Tensor:
        """Return the normalized sum of word and token type embeddings."""
        embedded = inputs.get("inputs_embeds")
        words = self.word_embeddings(input_ids) if embedded is None else embedded
        types = words.new_zeros(1, 1).long() if token_type_ids is None else token_type_ids
        normalized: Tensor = self.LayerNorm(words + self.token_type_embeddings(types))
        return normalized


class JinaBertSelfAttention(bert.BertSelfAttention):
    """BERT's attention, whose queries and keys may be normalized."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        norms = nn.LayerNorm if config.qk_norm else nn.Identity
        self.layer_norm_q = norms(config.hidden_size, eps=config.layer_norm_eps)
        self.layer_norm_k = norms(config.hidden_size, eps=config.layer_norm_eps)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to all tokens; the mask includes the ALiBi bias."""
        projected = (
            self.layer_norm_q(self.query(hidden_states)),
            self.layer_norm_k(self.key(hidden_states)),
            self.value(hidden_states),
        )
        heads = [
            one.unflatten(-1, (-1, self.attention_head_size)).transpose(1, 2) for one in projected
        ]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, bert.eager_attention_forward
        )
        mixed, weights = attend(self, *heads, attention_mask, scaling=self.scaling, **kwargs)
        return mixed.flatten(2), weights


class JinaBertMLP(nn.Module):
    """Gated MLP without the residual's norm; its gate is the first half of the projection, or the second.

    Args:
        config: Config of the model.
    """

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.first = not config.qk_norm
        self.act = ACT2FN[_GATES[config.feed_forward_type]]
        gated = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        down = nn.Linear(config.intermediate_size, config.hidden_size)
        if self.first:
            self.gated_layers, self.wo = gated, down
            self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        else:
            self.up_gated_layer, self.down_layer = gated, down

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the MLP's output; with the residual's norm if the gate is the first half."""
        if self.first:
            gate, up = self.gated_layers(hidden_states).chunk(2, dim=-1)
            normalized: Tensor = self.layernorm(hidden_states + self.wo(self.act(gate) * up))
            return normalized
        up, gate = self.up_gated_layer(hidden_states).chunk(2, dim=-1)
        down: Tensor = self.down_layer(up * self.act(gate))
        return down


class JinaBertLayer(nn.Module):
    """Attention and gated MLP, each followed by norms.

    Args:
        config: Config of the model.
    """

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.attention = bert.BertAttention(config)
        self.attention.self = JinaBertSelfAttention(config)
        self.mlp = JinaBertMLP(config)
        if config.qk_norm:
            self.layer_norm_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.layer_norm_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Return the hidden states after the layer."""
        attended: Tensor = self.attention(hidden_states, attention_mask, **kwargs)[0]
        if self.mlp.first:
            mixed: Tensor = self.mlp(attended)
            return mixed
        attended = self.layer_norm_1(hidden_states + attended)
        normalized: Tensor = self.layer_norm_2(attended + self.mlp(attended))
        return normalized


class JinaBertEncoder(nn.Module):
    """Layers whose masks include the ALiBi bias.

    Args:
        config: Config of the model.
    """

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(JinaBertLayer(config) for _ in range(config.num_hidden_layers))
        self.slopes = slopes(config.num_attention_heads)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Return the hidden states after the last layer."""
        positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        distance = (positions[:, None] - positions[None]).abs().to(hidden_states.dtype)
        per_head = torch.tensor(self.slopes, dtype=distance.dtype, device=distance.device)
        mask = -distance * per_head[:, None, None]  # (heads, seq, seq)
        mask = mask[None] if attention_mask is None else attention_mask + mask
        for layer in self.layer:
            hidden_states = layer(hidden_states, mask)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states)


class JinaBertModel(bert.BertModel):
    """BERT's model with ALiBi and gated MLPs.

    Args:
        config: Config of the model.
        add_pooling_layer: Whether it has BERT's pooler, which classifiers use.
    """

    config: JinaBertConfig
    config_class = JinaBertConfig

    def __init__(self, config: JinaBertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        self.embeddings = JinaBertEmbeddings(config)
        self.encoder = JinaBertEncoder(config)  # type: ignore[assignment]
        self.post_init()  # type: ignore[no-untyped-call]


class JinaBertForSequenceClassification(bert.BertForSequenceClassification):
    """BERT's classifier on `JinaBertModel`.

    Args:
        config: Config of the model.
    """

    config: JinaBertConfig
    config_class = JinaBertConfig

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config)
        self.post_init()  # type: ignore[no-untyped-call]


class JinaBertForMaskedLM(bert.BertForMaskedLM):
    """BERT's masked language model on `JinaBertModel`.

    Args:
        config: Config of the model.
    """

    config: JinaBertConfig
    config_class = JinaBertConfig

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config, add_pooling_layer=False)
        self.post_init()  # type: ignore[no-untyped-call]


def register() -> None:
    """Register config and models with transformers."""
    AutoConfig.register("jina_bert", JinaBertConfig, exist_ok=True)
    AutoModel.register(JinaBertConfig, JinaBertModel, exist_ok=True)
    AutoModelForMaskedLM.register(JinaBertConfig, JinaBertForMaskedLM, exist_ok=True)
    AutoModelForSequenceClassification.register(
        JinaBertConfig, JinaBertForSequenceClassification, exist_ok=True
    )
