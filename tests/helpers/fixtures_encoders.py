# SPDX-License-Identifier: Apache-2.0
"""What several tests of encoders and others use."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import parity
import pytest
import torch
from parity import Array, Subject
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from qeff_zoo.export.transforms.modules import give, rebound

#: Encoders whose graphs are compared, see `parity.is_traced`.
TRACED = parity.names_of("feature-extraction") if parity.EVERY else parity.CROSSED_ENCODERS


#: Rows of so many tokens each, in a batch of as many columns as the longest.
LENGTHS = [(5, 3), (33, 33), (2,), (1,), (40, 1, 17)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.together(name)) for name in TRACED],
)
def encoder(request: pytest.FixtureRequest) -> Subject:
    return parity.subject(request.param)


def embeddings(model: Any, ids: Array, lengths: tuple[int, ...], pooling: str, norm: bool) -> Array:
    """Compute every row by itself, without padding, and pool it in a plain loop."""
    rows = []
    for row, length in zip(ids, lengths, strict=True):
        tokens = torch.from_numpy(row[None, :length])
        with torch.no_grad():
            output = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        hidden = output.last_hidden_state[0]
        states = hidden.double().numpy()
        pooled = {
            "mean": lambda states=states: sum(states) / len(states),
            "cls": lambda states=states: states[0],
            "max": lambda states=states: np.max(states, axis=0),
        }[pooling]()
        rows.append(pooled / np.sqrt((pooled**2).sum()) if norm else pooled)
    return np.stack(rows)


def texts_for(encoder: Subject, lengths: tuple[int, ...]) -> tuple[Array, Array]:
    """Draw a padded batch; among the tokens of its texts are some of padding's id."""
    ids = parity.tokens(rows=len(lengths), length=max(lengths))
    ids[:, 3::9] = getattr(encoder.hf.config, "pad_token_id", None) or 0
    return ids, (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)


def mutated(change: Callable[[Any], None]) -> Callable[[Subject], Any]:
    """Make a change of the modules or weights of a copy of Hugging Face's model."""

    def change_copy(subject: Subject) -> Any:
        model = copy.deepcopy(subject.hf)
        change(model)
        return model

    return change_copy


def configured(**config: Any) -> Callable[[Subject], Any]:
    """Make Hugging Face's model anew with the same weights and another config."""

    def make(subject: Subject) -> Any:
        model = parity.hugging_face({**subject.config, **config}, subject.recipe.task)
        model.load_state_dict(subject.hf.state_dict())
        return model

    return make


def zeroed(path: str) -> Callable[[Subject], Any]:
    """Drop a weight."""
    return mutated(lambda model: model.get_parameter(path).zero_())


def _positions_from_zero(model: Any) -> None:
    table = model.embeddings.position_embeddings
    table.weight.copy_(table.weight.roll(-(table.padding_idx + 1), 0))


def _count_padding(model: Any) -> None:
    first = model.embeddings.padding_idx + 1
    model.embeddings.create_position_ids_from_input_ids = lambda ids, *_: torch.arange(
        first, first + ids.shape[1]
    )[None]


def _scale_scores(model: Any) -> None:
    for block in model.encoder.block:
        block.layer[0].SelfAttention.scaling = model.config.d_kv**-0.5


def _spread_buckets(model: Any) -> None:
    model.encoder.block[0].layer[0].SelfAttention.relative_attention_max_distance = 60


def _leave_distances(model: Any) -> None:
    model.encoder.norm_rel_ebd = ["none"]


def _spread_deberta_buckets(model: Any) -> None:
    model.encoder.max_relative_positions = 50


def _swap_groups(model: Any) -> None:
    groups = model.encoder.albert_layer_groups
    groups[0], groups[1] = groups[1], groups[0]


def _masked_by(name: str, other: Callable[..., Any]) -> Callable[[Subject], Any]:
    """Let a model make its mask by another of transformers' functions."""

    def make(config: Any, inputs_embeds: Any, attention_mask: Any, **_: Any) -> Any:
        given = {"past_key_values": None} if other is create_causal_mask else {}
        return other(
            config=config, inputs_embeds=inputs_embeds, attention_mask=attention_mask, **given
        )

    return mutated(lambda model: give(model, rebound(type(model).forward, **{name: make})))


def _clip_distances(model: Any) -> None:
    for layer in model.encoder.layer:
        layer.attention.self.max_relative_positions = 4


def _roll_channels(model: Any) -> None:
    for layer in model.encoder.layers:
        layer.attention.query.weight.copy_(layer.attention.query.weight.roll(8, 0))


def _turn_faster(model: Any) -> None:
    table = model.encoder.embed_positions.weight
    table.copy_(table.roll(1, 1))


def _leave(path: str) -> Callable[[Subject], Any]:
    """Leave a module out."""
    return mutated(lambda model: model.set_submodule(path, torch.nn.Identity()))


def _leave_neighbours(model: Any) -> None:
    projection, size = model.embeddings.embedding_transformation, model.config.embedding_size
    projection.weight[:, :size].zero_()
    projection.weight[:, 2 * size :].zero_()


def _add_in_full(model: Any) -> None:
    for layer in model.layers:
        layer.scaling_factor = 1.0


def _leave_sinks(model: Any) -> None:
    for layer in model.layers:
        layer.self_attn.sinks -= 100


_BASES = {"rope_theta": 1000.0, "rope_type": "default"}


_BASE_BY_KIND = dict.fromkeys(("full_attention", "sliding_attention"), _BASES)


FACTS: Mapping[str, tuple[str, Callable[[Subject], Any]]] = {
    "roberta: first position": ("roberta-base", mutated(_positions_from_zero)),
    "roberta: padding has no position": ("roberta-base", mutated(_count_padding)),
    "mpnet: first position": ("mpnet-base", mutated(_positions_from_zero)),
    "mpnet: bias by distance": ("mpnet-base", zeroed("encoder.relative_attention_bias.weight")),
    "modernbert: window": ("modernbert-base", configured(local_attention=4096)),
    "modernbert: order of the layers": (
        "modernbert-base",
        configured(layer_types=["full_attention", *["sliding_attention"] * 6]),
    ),
    "modernbert: local RoPE base": (
        "modernbert-base",
        configured(rope_parameters={"full_attention": _BASES, "sliding_attention": _BASES}),
    ),
    "deberta: content to position": ("deberta-v2-base", configured(pos_att_type=["p2c"])),
    "deberta: position to content": ("deberta-v2-base", configured(pos_att_type=["c2p"])),
    "deberta: buckets": ("deberta-v2-base", mutated(_spread_deberta_buckets)),
    "deberta: norm of distances": ("deberta-v2-base", mutated(_leave_distances)),
    "deberta: convolution": ("deberta-v2-conv", zeroed("encoder.conv.conv.weight")),
    "albert: shared layers": ("albert-base", configured(num_hidden_layers=3)),
    "albert: groups of layers": ("albert-groups", mutated(_swap_groups)),
    "albert: embeddings are widened": (
        "albert-base",
        zeroed("encoder.embedding_hidden_mapping_in.bias"),
    ),
    "electra: embeddings are widened": ("electra-base", zeroed("embeddings_project.bias")),
    "t5: bias by distance": (
        "t5-base",
        zeroed("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ),
    "t5: buckets": ("t5-base", mutated(_spread_buckets)),
    "t5: scores are not scaled": ("t5-base", mutated(_scale_scores)),
    "ernie: task": ("ernie-base", zeroed("embeddings.task_type_embeddings.weight")),
    "nomic_bert: RoPE base": ("nomic_bert-base", configured(rope_parameters=_BASES)),
    "gte: RoPE base": ("gte-base", configured(rope_parameters=_BASES)),
    "eurobert: RoPE base": ("eurobert-base", configured(rope_parameters=_BASES)),
    "jina_embeddings_v3: RoPE base": (
        "jina_embeddings_v3-base",
        configured(rope_parameters=_BASES),
    ),
    "deberta v1: position to content": (
        "deberta-base",
        zeroed("encoder.layer.0.attention.self.pos_q_proj.weight"),
    ),
    "deberta v1: farthest distance": ("deberta-base", mutated(_clip_distances)),
    "megatron-bert: last norm": ("megatron-bert-base", _leave("encoder.ln")),
    "roberta-prelayernorm: last norm": ("roberta-prelayernorm-base", _leave("LayerNorm")),
    "xlm-roberta-xl: last norm": ("xlm-roberta-xl-base", _leave("encoder.LayerNorm")),
    "rembert: embeddings are widened": (
        "rembert-base",
        zeroed("encoder.embedding_hidden_mapping_in.bias"),
    ),
    "esm: scale by masked tokens": ("esm-base", configured(token_dropout=False)),
    "esm: norm of embeddings": ("esm-learned", _leave("embeddings.layer_norm")),
    "esmc: scale of residuals": ("esmc-base", mutated(_add_in_full)),
    "esmc: norm of queries": ("esmc-base", zeroed("layers.0.self_attn.q_norm.weight")),
    "squeezebert: groups": ("squeezebert-base", mutated(_roll_channels)),
    "roformer: RoPE": ("roformer-base", mutated(_turn_faster)),
    "ultrabert: window": ("ultrabert-base", configured(sliding_window=4096)),
    "ultrabert: RoPE by kind of layer": (
        "ultrabert-base",
        configured(rope_parameters=_BASE_BY_KIND),
    ),
    "mt5: bias by distance": (
        "mt5-base",
        zeroed("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ),
    "umt5: bias by distance in each layer": (
        "umt5-base",
        zeroed("encoder.block.2.layer.0.SelfAttention.relative_attention_bias.weight"),
    ),
    "eurobert: bidirectional attention": (
        "eurobert-base",
        _masked_by("create_bidirectional_mask", create_causal_mask),
    ),
    "clip: causal attention": (
        "clip_text_model-base",
        _masked_by("create_causal_mask", create_bidirectional_mask),
    ),
    "clip: activation": ("clip_text_model-base", configured(hidden_act="gelu")),
    "convbert: kernel of each token": (
        "convbert-base",
        zeroed("encoder.layer.1.attention.self.conv_kernel_layer.weight"),
    ),
    "mobilebert: neighbouring tokens": ("mobilebert-base", mutated(_leave_neighbours)),
    "tipsv2: scale of embeddings": ("tipsv2_text_model-base", configured(scale_sqrt_depth=False)),
    "privacy filter: window": ("openai_privacy_filter-base", configured(sliding_window=4096)),
    "privacy filter: sinks": ("openai_privacy_filter-base", mutated(_leave_sinks)),
    "privacy filter: limit of the gate": (
        "openai_privacy_filter-base",
        configured(swiglu_limit=7.0),
    ),
    "embedding_gemma2: window": ("embedding_gemma2_text-base", configured(sliding_window=4096)),
    "embedding_gemma2: signals of layers": (
        "embedding_gemma2_text-base",
        zeroed("layers.1.ple_block.per_layer_input_gate.weight"),
    ),
    "embedding_gemma2: RoPE by kind of layer": (
        "embedding_gemma2_text-base",
        configured(rope_parameters=_BASE_BY_KIND),
    ),
}


HEADS: Mapping[str, tuple[str, Callable[[Subject], Any]]] = {
    "bert: pooler": ("bert-base-text-classification", zeroed("bert.pooler.dense.weight")),
    "bert: token types": (
        "bert-base-text-classification",
        zeroed("bert.embeddings.token_type_embeddings.weight"),
    ),
    "roberta: layer of the head": (
        "roberta-base-text-classification",
        zeroed("classifier.dense.weight"),
    ),
    "modernbert: layer of the head": (
        "modernbert-base-text-classification",
        zeroed("head.dense.weight"),
    ),
    "deberta: pooler": ("deberta-v2-base-text-classification", zeroed("pooler.dense.bias")),
    "llama: head": ("llama-base-text-classification", zeroed("score.weight")),
}
