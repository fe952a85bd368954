# SPDX-License-Identifier: Apache-2.0
"""Whether a package has the settings of its checkpoint: files, tokens that end generation, names of labels, prompts.

In: a package, the settings that its session uses, and what `qeff_zoo.validation.reference.settings` answers for its
checkpoint. Out: the checks of a stage of its own, and the settings for the record.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import read_text
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import source_in
from qeff_zoo.validation.content.exact import ExactComparison
from qeff_zoo.validation.judgement.parity import Check

_STAGE = "settings"
#: Fields of a package's config.json that are not of the checkpoint, or that name code.
_OWN = ("auto_map", "label_names")


def judge(
    package: Package, read: Mapping[str, Any], answer: Mapping[str, Any], level: str, version: str
) -> list[Check]:
    """Return the checks of a package's settings.

    Args:
        package: Any.
        read: Result of `package_runner.settings_read_by`.
        answer: Answer of `reference.settings`.
        level: Level of the validation.
        version: Version of transformers.
    """
    against = {
        "reference": answer["class"],
        "revision": source_in(package.manifest).get("revision"),
        "transformers": version,
        "dtype": "settings",
        "patched": False,
    }
    comparisons = _comparisons(package, read, answer)
    return [
        comparison.check(_STAGE, level, against)
        for comparison in comparisons
        if comparison.questions
    ]


def _comparisons(
    package: Package, read: Mapping[str, Any], answer: Mapping[str, Any]
) -> Iterator[ExactComparison]:
    files = answer["files"]
    yield ExactComparison(
        metric="same_settings",
        questions=[*files],
        expected=[_without(file) for file in files.values()],
        act=lambda name: _without(_read(package.path / name)),
        damages={"every file missing": lambda name: f"no {name}"},
    )
    for name, metric in (("ends", "same_end_tokens"), ("labels", "same_labels")):
        if name in read and answer[name] is not None:
            yield ExactComparison(
                metric=metric,
                questions=[read[name]],
                expected=[answer[name]],
                act=lambda one: one,
                damages={"one more": lambda one: [*one, None]},
            )


def _read(path: Path) -> Any:
    """Return the content of a file, an object or a list; None without it."""
    return json.loads(read_text(path)) if path.is_file() else None


def _without(settings: Any) -> Any:
    """Return settings without fields that are not compared."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: value for name, value in settings.items() if name not in _OWN}


def reported(read: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record shows: the tokens that end generation, its settings, labels and prompts.

    Args:
        read: Result of `package_runner.settings_read_by`.
        answer: Answer of `reference.settings`.
    """
    files = answer["files"]
    prompts = files.get("config_sentence_transformers.json", {})
    shown = {
        "eos_token_ids": read.get("ends"),
        "labels": read.get("labels"),
        "generation": files.get("generation_config.json"),
        "prompts": prompts.get("prompts"),
        "default_prompt_name": prompts.get("default_prompt_name"),
    }
    shown_values = {name: value for name, value in shown.items() if value}
    return {"settings": shown_values} if shown_values else {}
