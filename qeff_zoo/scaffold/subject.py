# SPDX-License-Identifier: Apache-2.0
"""What a recipe is drafted for: an architecture, as its configuration and transformers describe it."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import registry
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.scaffold.shrinking import parse
from qeff_zoo.tasks import FEATURE_EXTRACTION, TEXT_GENERATION, find


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The architecture that a recipe is drafted for.

    Args:
        config: Raw config.json of a real model.
        task: Hub pipeline tag.
        architectures: Class names that the recipe covers.
        family: Folder below `transformers.models`.
    """

    config: Mapping[str, Any]
    task: str
    architectures: tuple[str, ...]
    family: str

    @property
    def model_type(self) -> str:
        """`model_type` of the configuration."""
        return str(self.config["model_type"])


def examine(config: Mapping[str, Any]) -> Subject:
    """Find out what kind of model a configuration describes, and refuse what no recipe can describe yet.

    Args:
        config: Raw config.json.

    Raises:
        UnsupportedModelError: transformers does not have or accept it, or it is not a single text model.
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
    if not _is_text(parsed):
        raise UnsupportedModelError(
            f"model_type {model_type!r} has several parts or no text; expected a single text model. Give the config of "
            f"its text model alone (`text_config`), or write recipes/{registry.file_name(model_type)}.py by hand."
        )
    named = tuple(config.get("architectures") or ())
    named_causal = tuple(name for name in named if name.endswith(find(TEXT_GENERATION).suffixes))
    if model_type in causal and (named_causal or model_type not in masked):
        task, architectures = TEXT_GENERATION, named_causal or (causal[model_type],)
    else:
        task, architectures = FEATURE_EXTRACTION, named or (auto.MODEL_MAPPING_NAMES[model_type],)
    return Subject(
        config=config, task=task, architectures=architectures, family=family_of(model_type)
    )


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
