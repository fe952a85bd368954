# SPDX-License-Identifier: Apache-2.0
"""Whether a package reads texts as sentence-transformers does: prompts, lengths and lower case, to the bit.

In: a package, and what `qeff_zoo.validation.reference.sentences` answers for its checkpoint. Out: a check of tokens,
and of a CrossEncoder of scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import (
    CrossEncoder,
    read_cross_encoder,
)
from qeff_zoo.checkpoint.sentence_transformers.files import files_of
from qeff_zoo.checkpoint.sentence_transformers.settings import read_settings
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.package.files import read_json
from qeff_zoo.package.manifest import source_in
from qeff_zoo.runtime.labels import activation_of
from qeff_zoo.runtime.text.cross_encoders import reading_as
from qeff_zoo.runtime.text.late_interaction import LateInteraction
from qeff_zoo.runtime.text.texts import TextReader
from qeff_zoo.validation.content.exact import ExactComparison
from qeff_zoo.validation.judgement.parity import Check

_STAGE = "text"
_Question = Mapping[str, Any]
#: Fields of an answer that are compared, the latter two for late interaction.
_ANSWERS = ("ids", "skipped", "attended", "compared")
_DIGITS = 4  # of scores: float32 has seven


def judge(package: Package, answer: Mapping[str, Any] | None, level: str) -> list[Check]:
    """Return the checks of how texts are read, and of scores; none without the library's answer.

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
        package.path,
        settings,
        task=package.task,
        longest=longest,
        counts_prompt=skips,
        takes_pairs="scores" in answer,
    )
    encoder = read_cross_encoder(files_of(package.path))
    if encoder and encoder.modules:
        reader = reading_as(encoder, reader, settings)
    late = (
        LateInteraction.of_package(package.path, settings, reader.tokenizer)
        if reader.tokenizer
        else None
    )
    read = [one for one in answer["read"] if len(one["ids"]) <= longest]

    def act(question: _Question) -> Any:
        try:
            name, kind = question["prompt_name"], question["kind"]
            most = settings.length_of(kind)
            most = min(late.max_length(kind, most) if late else most, longest)
            most = reader.max_length if encoder else most
            prompt = settings.prompt(question["prompt"], name)
            text = question["text"]
            given = text if isinstance(text, str) else (text[0], text[1])
            (encoded,) = replace(reader, max_length=most, prompt=prompt).read([given])
        except GenerationError:
            return None
        if late:
            encoded = late.expanded(encoded, kind)
            attended = len(encoded.ids) if encoded.attended is None else encoded.attended
            return [encoded.ids, encoded.prompt_tokens, attended, late.places(encoded, kind)]
        return [encoded.ids, encoded.prompt_tokens]

    comparison = ExactComparison(
        metric="same_sentence_tokens",
        questions=read,
        expected=[[one[name] for name in _ANSWERS if name in one] for one in read],
        act=act,
        damages={"every text without its first character": _without_first},
    )
    against = {
        "reference": answer["reference"],
        "revision": source_in(package.manifest).get("revision"),
        "transformers": answer["transformers"],
        "dtype": "text",
        "modules": answer["library"],
        "patched": False,
    }
    checks = [comparison.check(_STAGE, level, against)] if read else []
    if scores := answer.get("scores"):
        checks.append(_scores(package, encoder, scores).check(_STAGE, level, against))
    return checks


def _without_first(question: _Question) -> _Question:
    text = question["text"]
    return {**question, "text": text[1:] if isinstance(text, str) else [text[0][1:], text[1]]}


def _scores(
    package: Package, encoder: CrossEncoder | None, answers: Sequence[Mapping[str, Any]]
) -> ExactComparison:
    """Return the comparison of scores that a package makes of logits."""
    config = read_json(package.path / "config.json")

    def act(logits: Sequence[float]) -> list[float]:
        activate = activation_of(config, len(logits), encoder)
        return _rounded(activate(np.array(logits, np.float32)).tolist())

    return ExactComparison(
        metric="same_scores",
        questions=[answer["logits"] for answer in answers],
        expected=[_rounded(answer["scores"]) for answer in answers],
        act=act,
        damages={"logits of half the size": lambda one: [value / 2 + 0.1 for value in one]},
    )


def _rounded(scores: Sequence[float]) -> list[float]:
    return [round(score, _DIGITS) for score in scores]
