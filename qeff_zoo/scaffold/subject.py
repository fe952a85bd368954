# SPDX-License-Identifier: Apache-2.0
"""What a recipe is drafted for: an architecture, as its configuration and transformers describe it."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import registry
from qeff_zoo.checkpoint.config import parsed_model_config
from qeff_zoo.contract import (
    AUDIO_TEXT_TO_TEXT,
    FEATURE_EXTRACTION,
    IMAGE_FEATURE_EXTRACTION,
    IMAGE_TEXT_TO_TEXT,
    IMAGE_TO_TEXT,
    NAMES,
    SPEECH_RECOGNITION,
    SPEECH_SEQ2SEQ,
    TEXT2TEXT,
    TEXT_GENERATION,
    find,
)
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.scaffold.shrinking import parse

#: Tasks of models with an encoder of images or audio, or with one beside a decoder of text.
COMPOSED = (
    *(IMAGE_TEXT_TO_TEXT, IMAGE_TO_TEXT, AUDIO_TEXT_TO_TEXT, SPEECH_RECOGNITION, SPEECH_SEQ2SEQ),
    TEXT2TEXT,
)
_ANY_CLASS = "AutoModel"  # of every model


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The architecture that a recipe is drafted for.

    Args:
        config: Raw config.json of a real model.
        tasks: Hub pipeline tags of the tasks that may compute it; one for a text model.
        architectures: Class names that the recipe covers.
        family: Folder below `transformers.models`.
    """

    config: Mapping[str, Any]
    tasks: tuple[str, ...]
    architectures: tuple[str, ...]
    family: str

    @property
    def task(self) -> str:
        """First task."""
        return self.tasks[0]

    @property
    def is_composed(self) -> bool:
        """Whether it encodes images or audio, or has an encoder beside its decoder."""
        return self.task not in (TEXT_GENERATION, FEATURE_EXTRACTION)

    @property
    def model_type(self) -> str:
        """`model_type` of the configuration."""
        return str(self.config["model_type"])


def examine(config: Mapping[str, Any]) -> Subject:
    """Find out what kind of model a configuration describes, and refuse what no recipe can describe yet.

    Args:
        config: Raw config.json.

    Raises:
        UnsupportedModelError: transformers does not have or accept it, or no task of qeff-zoo computes it.
    """
    from transformers import CONFIG_MAPPING, __version__
    from transformers.models.auto import modeling_auto as auto

    model_type = str(config["model_type"])
    causal, masked = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"transformers {__version__} has no model_type {model_type!r}, and code from a checkpoint is never run. "
            f"Expected an architecture of its own. Update transformers if it was added since."
        )
    try:
        parsed = parse(config)
    except ValueError as error:
        raise UnsupportedModelError(
            f"transformers {__version__} does not accept this config of model_type {model_type!r}: {error}. "
            f"Expected the config.json of a published checkpoint. Correct it."
        ) from error
    named = tuple(config.get("architectures") or ())
    if tasks := _composed_tasks(parsed, named) or _image_tasks(parsed, named):
        return Subject(
            config=config,
            tasks=tasks,
            architectures=named or (_class_of(parsed, tasks[0]),),
            family=family_of(model_type),
        )
    if not _is_text(parsed):
        reason = registry.reason_of(model_type)
        raise UnsupportedModelError(
            f"model_type {model_type!r} has several parts or no text, and no automatic class of a task that qeff-zoo "
            f"computes; expected one.{' ' * bool(reason)}{reason} Write recipes/{registry.file_name(model_type)}.py by "
            "hand."
        )
    named_causal = tuple(name for name in named if name.endswith(find(TEXT_GENERATION).suffixes))
    if model_type in causal and (named_causal or model_type not in masked):
        task, architectures = TEXT_GENERATION, named_causal or (causal[model_type],)
    else:
        task, architectures = FEATURE_EXTRACTION, named or (auto.MODEL_MAPPING_NAMES[model_type],)
    return Subject(
        config=config, tasks=(task,), architectures=architectures, family=family_of(model_type)
    )


def _composed_tasks(parsed: Any, named: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks whose automatic classes create a composed model; none for a text model."""
    known = parsed_model_config(parsed)
    tasks = tuple(name for name in COMPOSED if _class_of(known, name))
    labels_text = named and not any(_class_of(known, name) in named for name in tasks)
    return () if _is_text(parsed) and labels_text else tasks


def _image_tasks(parsed: Any, named: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks of whole images or videos whose automatic classes create a model; none for a text model.

    Only those of a named class, if there are some.
    """
    import transformers

    if _is_text(parsed):
        return ()
    tasks = [name for name in NAMES if find(name).role == "vision"]
    classes = {
        name: _class_of(parsed, name) for name in tasks if _ANY_CLASS not in find(name).auto_classes
    }
    whole = _class_of(parsed, IMAGE_FEATURE_EXTRACTION)
    kind = getattr(transformers, whole, None)
    if kind and (kind.main_input_name == "pixel_values" or hasattr(kind, "get_image_features")):
        classes[IMAGE_FEATURE_EXTRACTION] = whole
    possible = tuple(name for name, of_task in classes.items() if of_task)
    return tuple(name for name in possible if classes[name] in named) or possible


def _class_of(parsed: Any, task: str) -> str:
    """Return the name of the class that computes a task for a config; empty if there is none."""
    import transformers

    mappings = (getattr(transformers, name)._model_mapping for name in find(task).auto_classes)
    classes = (mapping[type(parsed)] for mapping in mappings if type(parsed) in mapping)
    first = next((kind[0] if isinstance(kind, tuple) else kind for kind in classes), None)
    return first.__name__ if first else ""


def _is_text(parsed: Any) -> bool:
    """Whether a configuration describes a single text model."""
    from transformers import AutoConfig

    if AutoConfig in parsed.sub_configs.values() or parsed.is_encoder_decoder:
        return False
    try:
        return parsed.get_text_config() is parsed and hasattr(parsed, "vocab_size")
    except ValueError:  # several texts
        return False


def family_of(model_type: str) -> str:
    """Return the folder below `transformers.models` where a model_type lives."""
    from transformers import CONFIG_MAPPING

    from qeff_zoo.export import architectures

    architectures.register(model_type)
    return str(CONFIG_MAPPING[model_type].__module__).split(".")[2]


def parents_of(family: str) -> set[str]:
    """Return the families whose modelling code transformers derives this one's from.

    Args:
        family: Folder below `transformers.models`.
    """
    spec = importlib.util.find_spec(f"transformers.models.{family}")
    folders = spec.submodule_search_locations if spec else None
    texts = (
        file.read_text(encoding="utf-8")
        for folder in folders or ()
        for file in Path(folder).glob("modular_*.py")
    )
    return {
        name for text in texts for name in re.findall(r"from \.\.(\w+)\.modeling_\w+ import", text)
    }
