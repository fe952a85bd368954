# SPDX-License-Identifier: Apache-2.0
"""Every architecture of transformers has a recipe, or a true reason in qeff_zoo/unsupported.json.

A reason is of a `kind`, which is checked on the configuration's class, or stands by itself with what proves it: an
`error` that its drafted tiny model still raises, a word of transformers' `source`, or another type it is an `alias` of.
Kinds in `others` are those of transformers' mappings, and `parts` those of the configurations of whole models.
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
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from qeff_zoo import registry, unsupported
from qeff_zoo.cli import main
from qeff_zoo.contract import tasks_of
from qeff_zoo.errors import UnsupportedModelError, ZooError
from qeff_zoo.export import loader
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.recipe import DECODER_SHAPES, ENCODER_SHAPES, Recipe, Tiny
from qeff_zoo.scaffold.shrinking import shrink
from qeff_zoo.tasks.encoders import whole_texts as encoders_task

DATA = unsupported.reasons()
KINDS, DECODERS, ENCODERS = DATA["kinds"], DATA["text-generation"], DATA["feature-extraction"]
_SUPPORTED = {recipe.model_type for recipe in registry.list_recipes()}
#: Of each list of what writes of something else, or labels sound or text, all types that transformers has.
OTHERS = {
    "text2text-generation": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "speech-seq2seq": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    "automatic-speech-recognition": auto.MODEL_FOR_CTC_MAPPING_NAMES,
    "text-classification": {  # what has no recipe at all is among those above
        name: auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[name]
        for name in auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        if name in _SUPPORTED
    },
    "audio-text-to-text": {
        name: kind
        for name, kind in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.items()
        if name not in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    },
}
IMAGES, SEEING = DATA["image-text-to-text"], auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
REASONS = [
    one
    for of in (DECODERS, ENCODERS, IMAGES, *(DATA[name] for name in OTHERS))
    for one in of.items()
]
CAUSAL = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
READS_WHOLE_TEXTS = (
    auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
)
# What somebody else's modelling code raises on a model that it was not written for.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)


def named(key: str) -> list[Any]:
    """List the entries that have a key, each with the class that it speaks of."""
    lists = (
        (DECODERS, class_of),
        (ENCODERS, encoder_of),
        (IMAGES, seeing_of),
        *((DATA[name], other_class_of) for name in OTHERS),
    )
    return [
        pytest.param(name, entry[key], find, id=f"{name}-{find.__name__}")
        for reasons, find in lists
        for name, entry in reasons.items()
        if key in entry
    ]


def recipes(task: str) -> set[str]:
    return {recipe.model_type for recipe in registry.list_recipes() if recipe.task == task}


def class_of(model_type: str) -> Any:
    return getattr(transformers, CAUSAL[model_type])


def encoder_of(model_type: str) -> Any:
    """Return the class that makes an encoder's states, or a head's where there is no other."""
    mappings = (
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
        *READS_WHOLE_TEXTS,
    )
    found = next(mapping[model_type] for mapping in mappings if model_type in mapping)
    return getattr(transformers, found if isinstance(found, str) else found[0])


def other_class_of(model_type: str) -> Any:
    """Return the class that writes of texts or recording, or labels it."""
    found = next(names[model_type] for names in OTHERS.values() if model_type in names)
    return getattr(transformers, found)


def seeing_of(model_type: str) -> Any:
    return getattr(transformers, SEEING[model_type])


def encoders() -> set[str]:
    """Name every type that has a class for whole texts, but those that are decoders."""
    answered = {name for name, entry in DECODERS.items() if entry.get("kind") != "encoder"}
    return set().union(*READS_WHOLE_TEXTS) - answered - recipes("text-generation")


def test_every_decoder_has_a_recipe_or_a_reason() -> None:
    """Write a reason for what is missing; remove it from qeff_zoo/unsupported.json when there is a recipe."""
    covered = recipes("text-generation")
    assert not set(CAUSAL) - covered - set(DECODERS), "neither recipe nor reason"
    assert not covered & set(DECODERS), "both recipe and reason"
    assert not set(DECODERS) - set(CAUSAL), "not a causal language model of transformers"


def test_every_encoder_has_a_recipe_or_a_reason() -> None:
    covered = recipes("feature-extraction")
    assert not encoders() - covered - set(ENCODERS), "neither recipe nor reason"
    assert not covered & set(ENCODERS), "both recipe and reason"
    assert not set(ENCODERS) - encoders(), "not a text encoder of transformers"


@pytest.mark.parametrize("task", OTHERS)
def test_every_other_type_has_a_recipe_or_a_reason(task: str) -> None:
    covered = {recipe.model_type for recipe in registry.list_recipes() if task in tasks_of(recipe)}
    assert not set(OTHERS[task]) - covered - set(DATA[task]), "neither recipe nor reason"
    assert not covered & set(DATA[task]), "both recipe and reason"
    assert not set(DATA[task]) - set(OTHERS[task]), "not such a class of transformers"


def test_vision_architectures_have_a_recipe_or_a_reason_but_not_both() -> None:
    covered = recipes("image-text-to-text") | recipes("image-to-text")
    assert not set(SEEING) - covered - set(IMAGES), "neither recipe nor reason"
    assert not covered & set(IMAGES), "both recipe and reason"
    assert not set(IMAGES) - set(SEEING), (
        "transformers has no class of it that reads pictures and text"
    )


def test_reasons_are_sentences_with_one_proof_at_most() -> None:
    for name, entry in REASONS:
        proofs = set(entry) - {"reason"}
        assert len(proofs) <= 1, name
        assert proofs <= {"kind", "error", "source", "alias"}, name
        assert ("kind" in entry) != ("reason" in entry), name
        assert (KINDS[entry["kind"]] if "kind" in entry else entry["reason"]).endswith("."), name
    assert {entry["kind"] for _, entry in REASONS if "kind" in entry} == set(KINDS)
    assert all(set(entry) != {"reason"} for _, entry in REASONS), "no proof"


def is_encoder(model_type: str, _: Any) -> bool:
    """It fills masks, and nothing but cross-attention that a configuration adds makes it read another's answer."""
    masked = model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return masked and not CONFIG_MAPPING[model_type]().is_encoder_decoder


def is_encoder_decoder(model_type: str, kind: Any) -> bool:
    """It says so, or is a decoder that can read an encoder's answer."""
    if CONFIG_MAPPING[model_type]().is_encoder_decoder:
        return True
    return "encoder_hidden_states" in reads(kind) and not is_encoder(model_type, kind)


def is_multimodal(model_type: str, _: Any) -> bool:
    parts = set(CONFIG_MAPPING[model_type].sub_configs)
    return bool(parts) and (
        model_type in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
        or bool(parts & {"vision_config", "audio_config", "audio_encoder_config"})
    )


def reads(kind: Any) -> set[str]:
    return set(inspect.signature(kind.forward).parameters)


def has_more_inputs(_: str, kind: Any) -> bool:
    """Something besides tokens goes in: boxes, images, markup, shapes, recording, or anything."""
    boxes = {"bbox", "pixel_values", "image", "visual_feats"}
    return bool(
        reads(kind) & {*boxes, "xpath_tags_seq", "input_shape_ids", "input_features", "inputs"}
    )


def is_decoder(model_type: str, kind: Any) -> bool:
    return "past_key_values" in reads(kind) and model_type not in CAUSAL


CHECKS = {
    "encoder": is_encoder,
    "encoder-decoder": is_encoder_decoder,
    "multimodal": is_multimodal,
    "inputs": has_more_inputs,
    "decoder": is_decoder,
}


@pytest.mark.parametrize(("model_type", "kind", "find"), named("kind"))
def test_reason_of_a_kind_is_true_of_the_class(model_type: str, kind: str, find: Any) -> None:
    assert CHECKS[kind](model_type, find(model_type))


@pytest.mark.parametrize("kind", CHECKS)
def test_a_plain_decoder_is_of_no_kind(kind: str) -> None:
    plain = ("llama", "mixtral", "gemma3_text", "mamba")
    assert not any(CHECKS[kind](name, class_of(name)) for name in plain)


@pytest.mark.parametrize("kind", ["encoder-decoder", "multimodal", "inputs", "decoder"])
def test_a_plain_encoder_is_of_no_other_kind(kind: str) -> None:
    plain = ("bert", "roberta", "modernbert", "esm")
    assert not any(CHECKS[kind](name, encoder_of(name)) for name in plain)


def try_tiny(model_type: str, kind: Any) -> None:
    """Run the tiny model that a draft would have, without weights; a decoder on states."""
    given = {**CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type}
    config = {"model_type": model_type, **shrink(given)}
    decodes = CAUSAL.get(model_type) == kind.__name__
    recipe = Recipe(
        model_type=model_type,
        architectures=(kind.__name__,),
        task="text-generation" if decodes else "feature-extraction",
        special="Tried.",
        shapes=DECODER_SHAPES if decodes else ENCODER_SHAPES,
        tiny=(Tiny(config=config),),
    )
    model = loader.load_meta(config, recipe)
    if not decodes:
        encoders_task.run_once(model)
    elif not decoder_tracing.probe(model):
        raise RuntimeError(f"{kind.__name__} keeps no keys and values.")


@pytest.mark.parametrize(("model_type", "error", "find"), named("error"))
def test_the_error_is_still_raised(
    model_type: str, error: str, find: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="transformers")
    with pytest.raises((ZooError, ValueError, *FAILURES)) as caught:
        try_tiny(model_type, find(model_type))
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "find"),
    [("llama", class_of), ("gpt2", class_of), ("bert", encoder_of), ("modernbert", encoder_of)],
)
def test_supported_architecture_has_no_reason(model_type: str, find: Any) -> None:
    try_tiny(model_type, find(model_type))


@pytest.mark.parametrize(("model_type", "word", "find"), named("source"))
def test_the_source_is_unchanged(model_type: str, word: str, find: Any) -> None:
    module = inspect.getmodule(find(model_type))
    assert module is not None
    assert word in inspect.getsource(module)


@pytest.mark.parametrize(("model_type", "alias", "find"), named("alias"))
def test_its_checkpoints_have_another_type(model_type: str, alias: str, find: Any) -> None:
    assert CONFIG_MAPPING[model_type].model_type == alias != model_type
    assert alias in recipes("text-generation" if find is class_of else "feature-extraction")


# --- every type, and what is said of it -----------------------------------------------------------
def mapped(kind: str) -> set[str]:
    """Name the types of the mappings of a kind."""
    names = DATA["others"][kind]["mappings"]
    return set().union(
        *(
            getattr(auto, f"MODEL_FOR_{name}_MAPPING_NAMES", ())
            or getattr(auto, f"MODEL_{name}_MAPPING_NAMES", ())
            or getattr(auto, f"{name}_MAPPING_NAMES")
            for name in names
        )
    )


def sub_types(whole: str) -> set[str]:
    """Name the types of the configurations in another one."""
    config = CONFIG_MAPPING[whole]
    specs = [*config.sub_configs.values(), *getattr(config, "sub_configs_defaults", {}).values()]
    return {str(getattr(spec, "model_type", "")) for spec in specs}


def test_every_type_has_a_recipe_or_a_reason() -> None:
    known = {registry.file_name(name) for name in registry.list_model_types()}
    types = {name for name in CONFIG_MAPPING_NAMES if registry.file_name(name) not in known}
    assert sorted(name for name in types if not registry.reason_of(name)) == []
    assert not any(registry.reason_of(recipe.model_type) for recipe in registry.list_recipes())


def test_a_type_without_a_recipe_stands_in_one_place() -> None:
    lists = [
        DATA["parts"],
        DATA["singles"],
        DATA["newer"],
        *([set(DATA[name]) for name in unsupported.tasks()]),
    ]
    others = [kind["types"] for kind in DATA["others"].values()]
    assert not _SUPPORTED & set().union(DATA["parts"], DATA["singles"], DATA["newer"], *others)
    named_once = [name for types in others for name in types]
    assert len(named_once) == len({*named_once})
    assert not {*named_once} & set().union(*lists)
    foreign = {*DATA["newer"], *DATA["elsewhere"]}
    assert not foreign & set(CONFIG_MAPPING_NAMES), "transformers has them now"
    assert not foreign & _SUPPORTED
    assert {*named_once, *DATA["parts"], *DATA["singles"]} <= set(CONFIG_MAPPING_NAMES)


@pytest.mark.parametrize("kind", DATA["others"])
def test_others_are_of_their_kind(kind: str) -> None:
    assert set(DATA["others"][kind]["types"]) <= mapped(kind)


def test_kinds_resemble_recipes_that_exist() -> None:
    known = {*registry.list_model_types()}
    resembling = [kind["resembles"] for kind in DATA["others"].values() if "resembles" in kind]
    assert resembling
    assert all({*names} <= known for names in resembling)
    assert not any("resemble" in kind["reason"] for kind in DATA["others"].values())


def test_parts_are_those_of_whole_models() -> None:
    """Some encoders are given as objects of another class: their names begin with that of the whole model."""
    for name, wholes in DATA["parts"].items():
        for whole in wholes:
            assert whole in CONFIG_MAPPING_NAMES
            assert name in sub_types(whole) or name.startswith(whole), name


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("deepseek_v4", "attention compresses keys into separate caches"),
        ("grounding-dino", "It reads image and text together"),
        ("bark", "has no recipe yet"),
        ("univnet", "or makes audio of them; no task does"),
        ("dpr", "one vector of a text"),
        ("siglip_text_model", "a part of 'siglip' models, which have a recipe"),
        ("clap_text_model", "a part of 'clap' models, which have none. It compares recordings"),
        ("exaone", "new in transformers 5.24"),
        ("kimi_k3", "transformers has no class of it"),
        ("moshi", "A multimodal model: it takes images or audio besides text"),
    ],
)
def test_a_known_reason_is_in_the_message_and_nothing_similar_suggested(
    model_type: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, whole = tmp_path / "config.json", tmp_path / "whole"
    whole.mkdir()
    for folder in (tmp_path, whole):
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (whole / "model.safetensors").write_bytes(b"")
    commands = [(one, whole) for one in ("plan", "build", "new")]
    # Weights would not help.
    for command, place in (("show", model_type), *commands, ("build", tmp_path), ("build", config)):
        assert main([command, str(place)]) == 1
        message = " ".join(capsys.readouterr().err.split())
        assert words in message
        assert "Did you mean" not in message
        assert command == "new" or "qeff-zoo new" not in message


@pytest.mark.parametrize(
    ("model_type", "architectures", "near"),
    [
        ("lama", ["LamaForCausalLM"], "llama"),
        ("deitt", ["DeittForImageClassification"], "deit"),
        ("lama", ["LamaForObjectDetection"], ""),
        ("detr_2", ["Detr2ForObjectDetection"], "detr"),
        ("maskformr", ["MaskFormrForInstanceSegmentation"], "maskformer"),
        ("oneformr", ["OneFormrForUniversalSegmentation"], ""),
        ("oneformr", [], ""),  # nearer to a type without a recipe
    ],
)
def test_only_recipes_of_the_same_task_are_suggested(
    model_type: str, architectures: list[str], near: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        registry.recipe_for({"model_type": model_type, "architectures": architectures})
    assert (
        (f"Did you mean {near!r}" in str(caught.value))
        if near
        else ("Did you" not in str(caught.value))
    )
