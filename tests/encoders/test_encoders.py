# SPDX-License-Identifier: Apache-2.0
"""Encoders: embeddings and labels are Hugging Face's, in every length and with padding; nothing is dropped."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import parity
import pytest
import selection
import torch
from fixtures_encoders import FACTS, HEADS, LENGTHS, TRACED, embeddings, encoder, texts_for
from parity import Array, Subject

from qeff_zoo import contract

__all__ = ["encoder"]

# --- feature extraction --------------------------------------------------------------------------

POOLINGS = [("mean", True), ("mean", False), ("cls", True), ("cls", False), ("max", True)]
#: Labels are few, so it takes many rows to see how large rounding is.
MANY = (33, 28, 24, 20, 16, 12, 9, 7, 5, 4, 3, 2)


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
        noises.append(parity.noise_of(expected, wide))
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
    noise = parity.noise_of(expected, wide)
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
            if name != "attention_mask"  # times the least float64, Splinter's is NaN
        }
        with torch.no_grad():
            found.append(outputs(subject.recipe.task, model, inputs)[0])
    return [answer.double().numpy() for answer in found]


def outputs(task: str, model: Any, inputs: Mapping[str, Any]) -> Any:
    """Return what a task computes of Hugging Face's model for whole texts."""
    if task == "multiple-choice":  # each text is the only choice
        inputs = {name: array[:, None] for name, array in inputs.items()}
    output = model(**inputs)
    if task == "question-answering":
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.last_hidden_state[:, -1] if task == "feature-extraction" else output.logits


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
    task = contract.find(subject.recipe.task)
    if "token_type_ids" in task.tracing(copy.deepcopy(subject.hf)).input_names:
        second = np.arange(max(lengths)) >= np.array(lengths)[:, None] // 2
        feeds["token_type_ids"] = (second & (mask == 1)).astype(np.int64)
    return feeds


def send_request(subject: Subject, how: str, feeds: Mapping[str, Array]) -> Array:
    """Ask what was made of a model, one of the ways in `TOLERANCE`."""
    embeds = subject.recipe.task == "feature-extraction"
    variant = (("pooling", "lasttoken"), ("normalize", False)) if embeds else ()
    if how == "torch":
        task = contract.find(subject.recipe.task)
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
    *("bert-base-question-answering", "bert-base-multiple-choice"),
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
