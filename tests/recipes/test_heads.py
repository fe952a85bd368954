# SPDX-License-Identifier: Apache-2.0
"""Heads: each class of transformers is built for the task that computes its head, or refused by name."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_builds import Models
from runnable_package import package
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.models.auto import modeling_auto

from qeff_zoo import registry
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import selection
from qeff_zoo.errors import CheckpointError, PlanError
from qeff_zoo.pipeline.unread_tensors import unmatched
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.validation.reference.media import require_videos

#: Mappings of transformers whose heads tasks compute, and these tasks. A head of another mapping is computed by none.
COMPUTED = {
    "MODEL_MAPPING_NAMES": {"feature-extraction", "image-feature-extraction"},
    "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES": {"feature-extraction"},
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": {
        *("text-generation", "image-text-to-text", "image-to-text", "audio-text-to-text"),
    },
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": {"text-classification"},
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": {"token-classification"},
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": {"fill-mask"},
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": {"question-answering"},
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": {"multiple-choice"},
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": {"text2text-generation", "audio-text-to-text"},
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": {"image-text-to-text", "image-to-text"},
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES": {
        *("image-text-to-text", "image-to-text", "audio-text-to-text", "speech-seq2seq"),
        *("text-generation", "automatic-speech-recognition"),
    },
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": {"image-classification"},
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES": {"zero-shot-image-classification"},
    "MODEL_FOR_IMAGE_MAPPING_NAMES": {"image-feature-extraction"},
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES": {"depth-estimation"},
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES": {"object-detection"},
    "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES": {"zero-shot-object-detection"},
    "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES": {"mask-generation"},
    "MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES": {"keypoint-detection"},
    "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES": {"image-to-image"},
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES": {"image-segmentation"},
    "MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING_NAMES": {"image-segmentation"},
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES": {"image-segmentation"},
    "MODEL_FOR_IMAGE_SEGMENTATION_MAPPING_NAMES": {"image-segmentation"},
    "MODEL_FOR_CTC_MAPPING_NAMES": {"automatic-speech-recognition"},
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES": {"speech-seq2seq", "audio-text-to-text"},
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES": {"text-to-speech"},
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES": {"video-classification"},
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": {"audio-classification"},
}
MAPPINGS = sorted(
    name for name in vars(modeling_auto) if name.startswith("MODEL_") and name.endswith("_NAMES")
)


def classes_in(mapping: str) -> dict[str, list[str]]:
    """The classes of a mapping, of every `model_type` that has a recipe."""
    found = getattr(modeling_auto, mapping)
    every = {name: [names] if isinstance(names, str) else [*names] for name, names in found.items()}
    return {one: every[one] for one in registry.list_model_types() if one in every}


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_class_is_built_for_its_head_or_refused(mapping: str) -> None:
    wrong = {}
    for model_type, names in classes_in(mapping).items():
        recipe = registry.find_recipe(model_type)
        for name in names:
            chosen = selection.choose("a", recipe, [name], [], None)
            unknown = selection.unknown_class("a", recipe, [name], chosen.task)
            refused = [*chosen.problems, *filter(None, [unknown])]
            if refused:
                assert repr(name) in refused[0]
            elif chosen.task not in computing(mapping, name):
                wrong[name] = chosen.task
    assert not wrong


def computing(mapping: str, name: str) -> set[str]:
    """The tasks that compute the head of a class: those of any mapping that lists it."""
    mappings = [mapping, *COMPUTED]
    of_class = [one for one in mappings if any(name in names for names in classes_in(one).values())]
    return set().union(*(COMPUTED.get(one, set()) for one in of_class))


def test_every_mapping_was_looked_at() -> None:
    assert COMPUTED.keys() <= {*MAPPINGS}
    assert len(MAPPINGS) > 30


# --- heads that are left out ---------------------------------------------------------------------
@pytest.fixture(scope="module")
def masked(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with the head of a masked language model, as most are published."""
    folder = models.copy(models.bert, tmp_path_factory.mktemp("masked") / "bert")
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder))
    model.save_pretrained(folder)
    return folder


def problems(folder: Path, **choices: Any) -> str:
    with pytest.raises(PlanError) as error:
        check(open_checkpoint(str(folder)), Request(**choices))
    return str(error.value)


def with_class(models: Models, source: Path, folder: Path, name: str) -> Path:
    copied = models.copy(source, folder)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    return copied


def test_a_head_that_nothing_computes_is_refused(
    masked: Path, models: Models, tmp_path: Path
) -> None:
    found = problems(with_class(models, masked, tmp_path / "two-heads", "BertForPreTraining"))
    assert "has architecture 'BertForPreTraining', whose head no task computes" in found
    assert "Give --task feature-extraction to build the model without its head" in found
    assert "has no head for 'text-classification' (user)" in problems(
        masked, task="text-classification"
    )


def test_a_head_is_left_out_on_request_and_named(masked: Path, home: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        built = package(masked, task="feature-extraction", seq_lens=(16,), batch_size=2)
    found = [str(one.message) for one in warned]
    assert any(
        "architecture 'BertForMaskedLM'; 'feature-extraction' (--task) leaves" in one
        for one in found
    )
    assert any(
        "tensors for which transformers' model of feature-extraction has no place: cls" in one
        for one in found
    )
    stored = load_file(masked / "model.safetensors")
    left_out = built.manifest["weights"]["left_out"]
    assert sum(left_out.values()) + built.manifest["weights"]["tensors"] == len(stored)
    assert left_out["cls"] == sum(name.startswith("cls.") for name in stored)


def test_other_heads_of_the_class_are_left_out_on_request(models: Models, tmp_path: Path) -> None:
    pairs = with_class(models, models.bert, tmp_path / "pairs", "BertForNextSentencePrediction")
    assert "'BertForNextSentencePrediction', whose head no task computes" in problems(pairs)
    plan = check(open_checkpoint(str(pairs)), Request(task="feature-extraction"))
    assert plan.warnings[-1:] == (
        "'pairs' has architecture 'BertForNextSentencePrediction'; 'feature-extraction' (--task) leaves out its head.",
    )
    decoder = problems(with_class(models, models.bert, tmp_path / "decoder", "BertLMHeadModel"))
    assert "Give --task feature-extraction to build the model without its head" in decoder
    other = with_class(models, models.bert, tmp_path / "other", "MyModelForRanking")
    assert "architecture 'MyModelForRanking', but recipe 'bert' covers" in problems(
        other, task="feature-extraction"
    )


def test_tensors_without_a_place_are_named(models: Models, home: Path, tmp_path: Path) -> None:
    """Of a class that is right: a tool added them, or the config is of another model."""
    folder = models.copy(models.llama, tmp_path / "llama")
    file = folder / "model.safetensors"
    extra = {
        "model.layers.0.adapter.weight": torch.ones(2),
        "model.layers.1.adapter.weight": torch.ones(2),
    }
    save_file(
        {**load_file(file), **extra, "value_head.bias": torch.ones(1)}, file, {"format": "pt"}
    )
    with pytest.warns(
        UserWarning, match=r"3 tensors .* model\.layers\.\*\.adapter, value_head\. They"
    ):
        built = package(folder, ctx_len=32, prefill_seq_len=8)
    assert built.manifest["weights"]["left_out"] == {"model.layers.*.adapter": 2, "value_head": 1}


def test_names_are_grouped_by_what_is_read() -> None:
    read = ["bert.embeddings.weight", "bert.layers.0.weight", "lm_head.weight"]
    names = [
        "bert.pooler.weight",
        "bert.pooler.bias",
        "lm_head.bias",
        "cls.a.b",
        "bert.layers.7.weight",
    ]
    assert unmatched(names, read) == {
        "bert.layers.*": 1,
        "bert.pooler": 2,
        "cls": 1,
        "lm_head.bias": 1,
    }
    assert sum(unmatched([f"part{n}.weight" for n in range(100)], []).values()) == 100


# --- videos ----------------------------------------------------------------------------------------
def test_a_declared_video_is_one_that_transformers_takes() -> None:
    declared = {
        recipe.model_type
        for recipe in registry.list_recipes()
        if recipe.images and recipe.images.video
    }
    assert {"qwen2_vl", "llava_next_video", "smolvlm"} <= declared
    for model_type in declared:
        require_videos(model_type)
    for part in ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"):
        require_videos(part)
    for model_type in ("aria", "llava", "paddleocr_vl", "no_such_model"):
        with pytest.raises(ValueError, match=f"'{model_type}' declares videos, which"):
            require_videos(model_type)


# --- labels ----------------------------------------------------------------------------------------
LABELS: dict[str, tuple[dict[str, Any], str | None]] = {
    "numbers": ({"id2label": {"1": "b", "0": "a"}, "num_labels": 2}, None),
    "equal names": ({"id2label": {"0": "a", "1": "a"}}, None),
    "none": ({"num_labels": 4}, None),
    "gap": ({"id2label": {"0": "a", "2": "c"}}, "names the labels '0', '2'; expected each number"),
    "from one": ({"id2label": {"1": "a", "2": "c"}}, "expected each number from 0 to 1 once"),
    "words": ({"id2label": {"a": "0", "b": "1"}}, "names the labels 'a', 'b'; expected each"),
    "twice": ({"id2label": {"0": "a", "00": "c"}}, "names the labels '0', '00'; expected each"),
    "count": ({"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, "and `num_labels` is 3"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_have_names_in_order(models: Models, tmp_path: Path, name: str) -> None:
    fields, expected = LABELS[name]
    folder = with_class(models, models.bert, tmp_path / "bert", "BertForSequenceClassification")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    if expected:
        assert expected in problems(folder)
    else:
        check(open_checkpoint(str(folder)), Request())
    # An encoder alone has no labels.
    assert check(open_checkpoint(str(folder)), Request(task="feature-extraction")).programs


# --- code of a checkpoint --------------------------------------------------------------------------
def test_a_reranker_with_code_of_its_own_is_refused_for_it(
    models: Models, home: Path, tmp_path: Path
) -> None:
    """As jina-reranker-v3, a class of its own, and jina-reranker-v2, other weights of a known class."""
    code = {"auto_map": {"AutoModel": "modeling.JinaForRanking"}}
    other = with_class(models, models.llama, tmp_path / "other", "JinaForRanking")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **code}))
    found = problems(other)
    assert "architecture 'JinaForRanking', but recipe 'llama' covers" in found
    assert "Python code of its own (`auto_map` in config.json), which is never run" in found
    known = with_class(models, models.llama, tmp_path / "known", "LlamaForCausalLM")
    (known / "config.json").write_text(
        json.dumps({**config, **code, "architectures": ["LlamaForCausalLM"]})
    )
    file = known / "model.safetensors"
    renamed = {name.replace("q_proj", "Wq"): value for name, value in load_file(file).items()}
    save_file(renamed, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="'known' has Python code of its own") as error:
        package(known, ctx_len=32, prefill_seq_len=8)
    assert "No tensor for 'model.layers.0.self_attn.q_proj.weight'" in str(error.value)
