# SPDX-License-Identifier: Apache-2.0
"""Whether a package reads texts as sentence-transformers does: prompts, lengths and lower case, to the bit.

In: a package, and what `qeff_zoo.validation.reference.sentences` answers for its checkpoint. Out: one check.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qeff_zoo.checkpoint.sentence_transformers.settings import read_settings
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.package.files import read_json
from qeff_zoo.package.manifest import source_in
from qeff_zoo.runtime.texts import TextReader
from qeff_zoo.validation.parity import Check
from qeff_zoo.validation.text import Comparison, check_of

_Question = Mapping[str, Any]


def judge(package: Package, answer: Mapping[str, Any] | None, level: str) -> list[Check]:
    """Return the check of how texts are read; none without the library's answer.

    Args:
        package: Any.
        answer: Answer of `reference.sentences`.
        level: Level of the validation.
    """
    if answer is None:
        return []
    longest = max(
        int(each["symbols"]["seq_len"])
        for program in package.programs
        for each in program.specializations
    )
    settings = read_settings(lambda name: read_json(package.path / name))
    named = {each["name"] for program in package.programs for each in program.inputs}
    skips = "pooling_mask" in named
    reader = TextReader.of_package(
        package.path, settings, task=package.task, longest=longest, counts_prompt=skips
    )
    read = [one for one in answer["read"] if len(one["ids"]) <= longest]

    def act(question: _Question) -> Any:
        try:
            name = question["prompt_name"]
            most = min(settings.length_of(question["kind"]), longest)
            prompt = settings.prompt(question["prompt"], name)
            (found,) = replace(reader, max_length=most, prompt=prompt).read([question["text"]])
        except GenerationError:
            return None
        return [found.ids, found.prompt_tokens]

    comparison = Comparison(
        metric="same_sentence_tokens",
        questions=read,
        expected=[[one["ids"], one["skipped"]] for one in read],
        act=act,
        damages={
            "every text without its first character": lambda one: {**one, "text": one["text"][1:]}
        },
    )
    against = {
        "reference": "SentenceTransformer",
        "revision": source_in(package.manifest).get("revision"),
        "transformers": answer["transformers"],
        "dtype": "text",
        "modules": answer["library"],
        "patched": False,
    }
    return [check_of(comparison, level, against)] if read else []
