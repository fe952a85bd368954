# SPDX-License-Identifier: Apache-2.0
"""Encoders: embeddings and labels are Hugging Face's, in every length and with padding; nothing is dropped."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import parity
import pytest
import selection
import torch
from parity import Array, Subject
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from qeff_zoo import tasks
from qeff_zoo.export.transforms.modules import give, rebound

# --- feature extraction --------------------------------------------------------------------------

POOLINGS = [("mean", True), ("mean", False), ("cls", True), ("cls", False), ("max", True)]
#: Encoders whose graphs are compared, see `parity.is_traced`.
TRACED = parity.names_of("feature-extraction") if parity.EVERY else parity.CROSSED_ENCODERS
#: Rows of so many tokens each, in a batch of as many columns as the longest.
LENGTHS = [(5, 3), (33, 33), (2,), (1,), (40, 1, 17)]
#: Labels are few, so it takes many rows to see how large rounding is.
MANY = (33, 28, 24, 20, 16, 12, 9, 7, 5, 4, 3, 2)


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


def noise_of(expected: Any, wide: Any) -> float:
    """Return the noise of float32: of the model, or at least of a pooling, which a table of vectors has alone."""
    rounding = np.finfo(np.float32).eps * np.abs(expected).max()
    return float(max(np.abs(expected - wide).max(), rounding))


@pytest.mark.parametrize(
    ("name", "pooling", "norm", "how"),
    [
        pytest.param(name, *pooling, how, marks=pytest.mark.together(name))
        for name in parity.names_of("feature-extraction")
        # What a pooling does is not the model's.
        for pooling in (POOLINGS[1:] if name == "bert-base" else POOLINGS[1:2])
        for how in (("torch", "portable", "fp32") if name in TRACED else ("torch",))
    ],
)
@pytest.mark.sampled(4, kept=selection.first_tinies())
def test_encoder_agrees_with_hugging_face(name: str, pooling: str, norm: bool, how: str) -> None:
    encoder, variant = parity.subject(name), (("pooling", pooling), ("normalize", norm))
    noises, distances = [], []
    for lengths in [*LENGTHS, (parity.positions(encoder), 9)]:
        ids, mask = texts_for(encoder, lengths)
        expected = embeddings(encoder.hf, ids, lengths, pooling, norm)
        wide = embeddings(encoder.hf64, ids, lengths, pooling, norm)
        got = parity.embed(encoder, how, variant, ids, mask)
        assert got.shape == expected.shape
        noises.append(noise_of(expected, wide))
        distances.append(np.abs(got - expected).max())
    assert max(distances) <= parity.TOLERANCE[how] * max(noises)


@pytest.mark.parametrize("storage", ["int8", "int4"])
@pytest.mark.sampled(2)
def test_quantized_encoder_is_the_one_of_rounded_weights(encoder: Subject, storage: str) -> None:
    variant = (("pooling", "mean"), ("normalize", False))
    lengths = (40, 1, 17)
    ids, mask = texts_for(encoder, lengths)
    rounded = encoder.rounded(storage, variant)
    expected = embeddings(rounded, ids, lengths, "mean", norm=False)
    wide = embeddings(parity.in_float64(rounded), ids, lengths, "mean", norm=False)
    noise = noise_of(expected, wide)
    got = parity.embed(encoder, storage, variant, ids, mask)
    tolerance = parity.TOLERANCE[storage] * noise
    assert np.abs(got - expected).max() <= tolerance
    unrounded = embeddings(encoder.hf, ids, lengths, "mean", norm=False)
    if len([*encoder.hf.parameters()]) > 1:  # a table of vectors alone is not rounded
        assert np.abs(expected - unrounded).max() > parity.DROPPED * tolerance


def test_poolings_differ() -> None:
    encoder = parity.subject("bert-base")
    ids, lengths = parity.tokens(rows=2, length=9), (9, 4)
    made = [embeddings(encoder.hf, ids, lengths, *how) for how in POOLINGS]
    for i, one in enumerate(made):
        assert all(np.abs(one - other).max() > 1e-3 for other in made[:i])


# --- every other task ----------------------------------------------------------------------------


def answers(subject: Subject, model: Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Ask Hugging Face about every row by itself, without padding."""
    found = []
    for row, mask in enumerate(feeds["attention_mask"]):
        inputs = {
            name: torch.from_numpy(value[row : row + 1, : mask.sum()])
            for name, value in feeds.items()
        }
        with torch.no_grad():
            output = model(**inputs)
        whole = subject.recipe.task == "feature-extraction"
        found.append((output.last_hidden_state[:, -1] if whole else output.logits)[0])
    return [answer.double().numpy() for answer in found]


def batch_answers(_: Subject, model: Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Ask Hugging Face about a padded batch."""
    with torch.no_grad():
        logits = model(**{name: torch.from_numpy(value) for name, value in feeds.items()}).logits
    return list(logits.double().numpy())


def inputs_for(subject: Subject, lengths: tuple[int, ...]) -> dict[str, Array]:
    """Draw a padded batch of pairs: the second half of a row is its second text, where that matters."""
    ids, mask = texts_for(subject, lengths)
    padding = getattr(subject.hf.config, "pad_token_id", None) or 0
    feeds = {"input_ids": np.where(mask == 1, ids, padding), "attention_mask": mask}
    task = tasks.find(subject.recipe.task)
    if "token_type_ids" in task.tracing(copy.deepcopy(subject.hf)).input_names:
        second = np.arange(max(lengths)) >= np.array(lengths)[:, None] // 2
        feeds["token_type_ids"] = (second & (mask == 1)).astype(np.int64)
    return feeds


def send_request(subject: Subject, how: str, feeds: Mapping[str, Array]) -> Array:
    """Ask what was made of a model, one of the ways in `TOLERANCE`."""
    embeds = subject.recipe.task == "feature-extraction"
    variant = (("pooling", "lasttoken"), ("normalize", False)) if embeds else ()
    if how == "torch":
        task = tasks.find(subject.recipe.task)
        module = task.tracing(subject.transformed, **dict(variant)).module
        with torch.no_grad():
            tensors = {name: torch.from_numpy(value) for name, value in feeds.items()}
            return module(**tensors).numpy()
    session = subject.portable(variant) if how == "portable" else subject.lowered(how, variant, 1)
    return session.run(None, dict(feeds))[0]


def distances(subject: Subject, how: str, feeds: Mapping[str, Array], wanted: list[Array]) -> float:
    got = send_request(subject, how, feeds)
    lengths = feeds["attention_mask"].sum(1)
    rows = [
        row[:length] if row.ndim == 2 else row for row, length in zip(got, lengths, strict=True)
    ]
    return max(float(np.abs(row - one).max()) for row, one in zip(rows, wanted, strict=True))


#: Of a decoder, with a pooler, with a dense head, with pooling of its own, of tokens; and states of a decoder.
TRACED_HEADS = {
    *("llama-base-text-classification", "bert-base-text-classification"),
    *("roberta-base-text-classification", "modernbert-base-text-classification"),
    "nomic_bert-base-token-classification",
    "gemma3_text-base-feature-extraction",
}


#: The scale of longrope follows the longest text of a batch, in transformers, too.
BY_BATCH = {"phimoe-base-text-classification"}


def test_heads_that_are_traced_are_there() -> None:
    assert set(parity.more_cases()) >= TRACED_HEADS


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.together(name)) for name in parity.more_cases()],
)
@pytest.mark.sampled(12, kept=TRACED_HEADS)
def test_every_other_task_agrees_with_hugging_face(name: str) -> None:
    """Heads are few: what they are in PyTorch is compared for every recipe, and one graph of each kind."""
    subject = parity.subject(name)
    noises: list[float] = []
    is_traced = parity.EVERY or name in TRACED_HEADS
    ways = ("torch", "portable", "fp32") if is_traced else ("torch",)
    run_hf = batch_answers if name in BY_BATCH else answers
    away: dict[str, list[float]] = {how: [] for how in ways}
    for lengths in [MANY, (1,), (parity.positions(subject), 9)]:
        feeds = inputs_for(subject, lengths)
        wanted = run_hf(subject, subject.hf, feeds)
        wide = run_hf(subject, subject.hf64, feeds)
        noises += [float(np.abs(one - two).max()) for one, two in zip(wanted, wide, strict=True)]
        for how, found in away.items():
            found.append(distances(subject, how, feeds, wanted))
    for how, found in away.items():
        assert max(found) <= parity.TOLERANCE[how] * max(noises), how


def test_token_types_are_inputs_where_pairs_need_them() -> None:
    kinds = {"bert": True, "electra": True, "albert": True, "ernie": True, "nomic_bert": True}
    kinds |= {"roberta": False, "deberta-v2": False, "mpnet": False, "distilbert": False}
    for model_type, wanted in kinds.items():
        subject = parity.subject(f"{model_type}-base-text-classification")
        assert ("token_type_ids" in inputs_for(subject, (5,))) == wanted, model_type


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


@pytest.mark.parametrize(
    "fact", [pytest.param(fact, marks=pytest.mark.together(FACTS[fact][0])) for fact in FACTS]
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
    how = "portable" if name in TRACED else "torch"
    got = parity.embed(subject, how, (("pooling", "mean"), ("normalize", False)), ids, mask)
    tolerance = parity.TOLERANCE[how] * np.abs(expected - wide).max()
    assert np.abs(got - expected).max() <= tolerance
    assert np.abs(got - other).max() > parity.DROPPED * tolerance


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


@pytest.mark.parametrize(
    "fact", [pytest.param(fact, marks=pytest.mark.together(HEADS[fact][0])) for fact in HEADS]
)
def test_dropped_fact_of_a_head_shows(fact: str) -> None:
    name, change = HEADS[fact]
    subject = parity.subject(name)
    feeds = inputs_for(subject, (12, 7))
    wanted = answers(subject, subject.hf, feeds)
    wide = answers(subject, subject.hf64, feeds)
    noise = max(np.abs(one - two).max() for one, two in zip(wanted, wide, strict=True))
    tolerance = parity.TOLERANCE["portable"] * noise
    other = answers(subject, change(subject), feeds)
    how = "portable" if name in TRACED_HEADS else "torch"
    assert distances(subject, how, feeds, wanted) <= tolerance
    assert distances(subject, how, feeds, other) > parity.DROPPED * tolerance


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.together(name))
        for name in ("llama-base-text-classification", "gemma3_text-base-feature-extraction")
    ],
)
def test_a_decoder_answers_at_its_last_token(name: str) -> None:
    """Padding behind a text changes nothing, the token that ends it changes all."""
    subject = parity.subject(name)
    feeds = inputs_for(subject, (12, 7))
    got = send_request(subject, "portable", feeds)
    alone = {name: value[1:, :7] for name, value in feeds.items()}
    np.testing.assert_allclose(send_request(subject, "portable", alone), got[1:], atol=1e-4)
    changed = {**feeds, "input_ids": feeds["input_ids"].copy()}
    changed["input_ids"][1, 6] += 1
    moved = np.abs(send_request(subject, "portable", changed) - got).max(1)
    assert moved[0] < 1e-4 < 1e-1 < moved[1]
