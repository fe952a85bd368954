# SPDX-License-Identifier: Apache-2.0
"""Part of the reference: the settings of a checkpoint beside its weights and its tokenizer, as transformers has them.

In: a checkpoint's folder and transformers' model. Out, in JSON values: its small files, the tokens that end generation,
and the names of labels.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from qeff_zoo import contract

#: Files that set what a model answers; a prompt of sentence-transformers among them.
_FILES = (
    *("config.json", "generation_config.json", "modules.json", "sentence_bert_config.json"),
    *("config_sentence_transformers.json", "[0-9]*_*/config.json"),
    *("model_index.json", "scheduler/scheduler_config.json", "text_encoder*/config.json"),
    *("unet/config.json", "transformer/config.json", "vae/config.json"),
)


def answer(request: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return a checkpoint's settings.

    Args:
        request: `checkpoint`, its folder, and `task`.
        model: transformers' own.
    """
    folder = Path(request["checkpoint"])
    named = contract.names_labels(request["task"]) and not model.can_generate()
    labels = model.config.id2label or {} if named else None
    return {
        "class": type(model.config).__name__,
        "files": dict(_files(folder)),
        "ends": _ends(folder, model),
        "labels": None if labels is None else [labels[number] for number in sorted(labels)],
    }


def _files(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the settings of each file."""
    for pattern in _FILES:
        for path in sorted(folder.glob(pattern)):
            yield path.relative_to(folder).as_posix(), json.loads(path.read_bytes())


def _ends(folder: Path, model: Any) -> list[int] | None:
    """Return the tokens that end transformers' `generate`; None of a model that does not generate.

    Where generation_config.json names none, those of config.json, with which a package ends: the plan warns of it.
    """
    if not model.can_generate():
        return None
    ends = GenerationConfig.from_model_config(model.config).eos_token_id
    if (folder / "generation_config.json").is_file():
        settings = GenerationConfig.from_pretrained(folder, local_files_only=True)
        ends = ends if settings.eos_token_id is None else settings.eos_token_id
    return sorted(ends if isinstance(ends, list) else [] if ends is None else [ends])
