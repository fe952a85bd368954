# SPDX-License-Identifier: Apache-2.0
"""Encoders: embeddings and labels are Hugging Face's, in every length and with padding; nothing is dropped."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import parity
import pytest
import torch
from parity import Array, Subject

# --- feature extraction --------------------------------------------------------------------------

POOLINGS = [("mean", True), ("mean", False), ("cls", True), ("cls", False), ("max", True)]
#: Graphs of every pooling are made of one model; what a pooling does is not the model's.
ENCODED = [
    pytest.param(name, *pooling, marks=pytest.mark.xdist_group(name))
    for name in parity.names_of("feature-extraction")
    for pooling in (POOLINGS if name == "bert-base" else POOLINGS[1:2])
]
#: Rows of so many tokens each, in a batch of as many columns as the longest.
LENGTHS = [(5, 3), (33, 33), (2,), (1,), (40, 1, 17)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(name))
        for name in parity.names_of("feature-extraction")
    ],
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
    ids[:, 3::9] = encoder.hf.config.pad_token_id or 0
    return ids, (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)


@pytest.mark.parametrize("how", ["torch", "portable", "fp32"])
@pytest.mark.parametrize(("name", "pooling", "norm"), ENCODED)
def test_encoder_agrees_with_hugging_face(name: str, pooling: str, norm: bool, how: str) -> None:
    encoder, variant = parity.subject(name), (("pooling", pooling), ("normalize", norm))
    noises, distances = [], []
    for lengths in [*LENGTHS, (parity.positions(encoder), 9)]:
        ids, mask = texts_for(encoder, lengths)
        expected = embeddings(encoder.hf, ids, lengths, pooling, norm)
        wide = embeddings(encoder.hf64, ids, lengths, pooling, norm)
        got = parity.embed(encoder, how, variant, ids, mask)
        assert got.shape == expected.shape
        noises.append(np.abs(expected - wide).max())
        distances.append(np.abs(got - expected).max())
    assert max(distances) <= parity.TOLERANCE[how] * max(noises)


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_quantized_encoder_is_the_one_of_rounded_weights(encoder: Subject, storage: str) -> None:
    variant = (("pooling", "mean"), ("normalize", False))
    lengths = (40, 1, 17)
    ids, mask = texts_for(encoder, lengths)
    rounded = encoder.rounded(storage, variant)
    expected = embeddings(rounded, ids, lengths, "mean", norm=False)
    wide = embeddings(parity.in_float64(rounded), ids, lengths, "mean", norm=False)
    noise = np.abs(expected - wide).max()
    got = parity.embed(encoder, storage, variant, ids, mask)
    tolerance = parity.TOLERANCE[storage] * noise
    assert np.abs(got - expected).max() <= tolerance
    unrounded = embeddings(encoder.hf, ids, lengths, "mean", norm=False)
    assert np.abs(expected - unrounded).max() > parity.DROPPED * tolerance


def test_poolings_differ() -> None:
    encoder = parity.subject("bert-base")
    ids, lengths = parity.tokens(rows=2, length=9), (9, 4)
    made = [embeddings(encoder.hf, ids, lengths, *how) for how in POOLINGS]
    for i, one in enumerate(made):
        assert all(np.abs(one - other).max() > 1e-3 for other in made[:i])


# --- facts ---------------------------------------------------------------------------------------
# As in test_recipes: dropped from Hugging Face's side, the comparison must fail.


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


_BASES = {"rope_theta": 1000.0, "rope_type": "default"}
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
    "albert: layers are called again": ("albert-base", configured(num_hidden_layers=3)),
    "albert: groups take turns": ("albert-groups", mutated(_swap_groups)),
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
}


@pytest.mark.parametrize(
    "fact", [pytest.param(fact, marks=pytest.mark.xdist_group(FACTS[fact][0])) for fact in FACTS]
)
def test_dropped_fact_of_an_encoder_shows(fact: str) -> None:
    name, change = FACTS[fact]
    subject = parity.subject(name)
    lengths = (40, 17)
    ids, mask = texts_for(subject, lengths)
    expected, wide, other = (
        embeddings(model, ids, lengths, "mean", norm=False)
        for model in (subject.hf, subject.hf64, change(subject))
    )
    got = parity.embed(subject, "portable", (("pooling", "mean"), ("normalize", False)), ids, mask)
    tolerance = parity.TOLERANCE["portable"] * np.abs(expected - wide).max()
    assert np.abs(got - expected).max() <= tolerance
    assert np.abs(got - other).max() > parity.DROPPED * tolerance
