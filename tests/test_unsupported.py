# SPDX-License-Identifier: Apache-2.0
"""Every causal language model of transformers has a recipe, or one true reason in docs/unsupported.json why not.

A reason is of a `kind`, which is checked on the configuration's class, or stands by itself with what proves it: an
`error` that its drafted tiny model still raises, a word of transformers' `source`, or another type it is an `alias` of.
"""

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto as auto

from qeff_zoo import registry
from qeff_zoo.errors import ZooError
from qeff_zoo.export import loader
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny
from qeff_zoo.scaffold.shrinking import shrink
from qeff_zoo.tasks import decoding

DATA = json.loads((Path(__file__).parent.parent / "docs" / "unsupported.json").read_bytes())
KINDS, REASONS = DATA["kinds"], DATA["model_types"]
CAUSAL = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
# What somebody else's modelling code raises on a model that it was not written for.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)


def named(key: str) -> list[str]:
    return [name for name, entry in REASONS.items() if key in entry]


def recipes(task: str) -> set[str]:
    return {recipe.model_type for recipe in registry.list_recipes() if recipe.task == task}


def class_of(model_type: str) -> Any:
    return getattr(transformers, CAUSAL[model_type])


def test_every_type_has_a_recipe_or_a_reason() -> None:
    """Write a reason for what is missing; remove it from docs/unsupported.json when there is a recipe."""
    covered = recipes("text-generation")
    assert not set(CAUSAL) - covered - set(REASONS), "neither recipe nor reason"
    assert not covered & set(REASONS), "both recipe and reason"
    assert not set(REASONS) - set(CAUSAL), "not a causal language model of transformers"


def test_reasons_are_sentences_with_one_proof_at_most() -> None:
    for name, entry in REASONS.items():
        proofs = set(entry) - {"reason"}
        assert len(proofs) <= 1, name
        assert proofs <= {"kind", "error", "source", "alias"}, name
        assert ("kind" in entry) != ("reason" in entry), name
        assert (KINDS[entry["kind"]] if "kind" in entry else entry["reason"]).endswith("."), name
    assert {entry["kind"] for entry in REASONS.values() if "kind" in entry} == set(KINDS)
    assert sum("reason" in entry and len(entry) == 1 for entry in REASONS.values()) <= 1  # unproved


def is_encoder(model_type: str) -> bool:
    """It fills masks, and nothing but cross-attention that a configuration adds makes it read another's answer."""
    masked = model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return masked and not CONFIG_MAPPING[model_type]().is_encoder_decoder


def is_encoder_decoder(model_type: str) -> bool:
    """It says so, or is a decoder that can read an encoder's answer."""
    if CONFIG_MAPPING[model_type]().is_encoder_decoder:
        return True
    reads = inspect.signature(class_of(model_type).forward).parameters
    return "encoder_hidden_states" in reads and not is_encoder(model_type)


def is_multimodal(model_type: str) -> bool:
    parts = set(CONFIG_MAPPING[model_type].sub_configs)
    return bool(parts) and (
        model_type in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
        or bool(parts & {"vision_config", "audio_config", "audio_encoder_config"})
    )


CHECKS = {
    "encoder": is_encoder,
    "encoder-decoder": is_encoder_decoder,
    "multimodal": is_multimodal,
}


@pytest.mark.parametrize("model_type", named("kind"))
def test_it_is_of_its_kind(model_type: str) -> None:
    assert CHECKS[REASONS[model_type]["kind"]](model_type)


@pytest.mark.parametrize("kind", CHECKS)
def test_a_plain_decoder_is_of_no_kind(kind: str) -> None:
    assert not any(map(CHECKS[kind], ("llama", "mixtral", "gemma3_text", "mamba")))


def try_tiny(model_type: str) -> None:
    """Run the tiny model that a draft would have on states, without weights."""
    given = {**CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type}
    config = {"model_type": model_type, **shrink(given)}
    recipe = Recipe(
        model_type=model_type,
        architectures=(CAUSAL[model_type],),
        task="text-generation",
        special="Tried.",
        shapes=DECODER_SHAPES,
        tiny=(Tiny(config=config),),
    )
    if not decoding.probe(loader.load_meta(config, recipe)):
        raise RuntimeError(f"{CAUSAL[model_type]} keeps no keys and values.")


@pytest.mark.parametrize("model_type", named("error"))
def test_the_error_is_still_raised(model_type: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="transformers")
    with pytest.raises((ZooError, ValueError, *FAILURES)) as caught:
        try_tiny(model_type)
    assert REASONS[model_type]["error"] in str(caught.value)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_what_has_a_recipe_raises_none(model_type: str) -> None:
    try_tiny(model_type)


@pytest.mark.parametrize("model_type", named("source"))
def test_the_source_still_says_so(model_type: str) -> None:
    module = inspect.getmodule(class_of(model_type))
    assert module is not None
    assert REASONS[model_type]["source"] in inspect.getsource(module)


@pytest.mark.parametrize("model_type", named("alias"))
def test_its_checkpoints_say_another_type(model_type: str) -> None:
    says = CONFIG_MAPPING[model_type].model_type
    assert says == REASONS[model_type]["alias"] != model_type
    assert says in recipes("text-generation")
