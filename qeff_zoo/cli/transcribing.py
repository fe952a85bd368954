# SPDX-License-Identifier: Apache-2.0
"""`run` of recordings: what is said in each, as text, with times, or as JSON."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qeff_zoo.cli.inapplicable_flags import (
    OF_PROMPTS,
    OF_TOKENS,
    TIMES,
    refuse_adapter,
    refuse_idle,
)
from qeff_zoo.cli.printing import print_generated, print_json, table
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.tasks import NAMES, SPEECH_SEQ2SEQ, find

#: Flags of answers that mean something here, too.
_HERE = ("generation_len", "temperature", "seed")


def transcribe_all(package: Package, arguments: argparse.Namespace) -> None:
    """Write down what is said in recordings."""
    from qeff_zoo.media.sound import read_sound
    from qeff_zoo.runtime import open_session

    if package.task in NAMES and find(package.task).reads != "sound":
        raise GenerationError(
            f"{str(arguments.sound[0])!r} does not apply to {package.task}, which reads none. Use --prompt TEXT."
        )
    refuse_adapter(package.task, arguments)
    refuse_idle(package.task, arguments, {*OF_PROMPTS, *OF_TOKENS} - {*_HERE})
    chosen = _chosen(package.task, arguments)
    session: Any = open_session(package, threads=arguments.threads)
    # One that cannot be read is told before hours of another are written down.
    for path in arguments.sound[1:]:
        read_sound(path, session.rate)
    for path in arguments.sound:
        (found,) = session.transcribe(path, **chosen)
        if arguments.json:
            print_json({"sound": str(path), **asdict(found)})
        elif arguments.timestamps or arguments.word_timestamps:
            of_words = bool(found.words) or package.task != SPEECH_SEQ2SEQ
            parts = found.words if of_words else found.segments
            rows = [[f"{one.start:.2f}", f"{one.end:.2f}", one.text] for one in parts]
            print(table(rows, ["from s", "to s", "word" if of_words else "segment"]))
        else:
            print_generated(found.text)


def _chosen(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how recordings are to be written down; refuse what means nothing to a task."""
    given = {
        "language": arguments.language,
        "task": "translate" if arguments.translate else None,
        "target_language": arguments.target_language,
        "prompt": " ".join(arguments.prompt) or None,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "generation_len": arguments.generation_len,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if task == SPEECH_SEQ2SEQ:
        asked = {name: True for name in TIMES if getattr(arguments, name)}
        return (_fallback(given) if arguments.fallback else {}) | given | asked
    if refused := [*given, *(["fallback"] if arguments.fallback else [])]:
        name = refused[0]
        flag = "--translate" if name == "task" else f"--{name.replace('_', '-')}"
        raise GenerationError(
            f"{flag} does not apply to {task}, which labels frames of sound; expected a package that writes token by "
            "token, as of Whisper. Leave it out."
        )
    return {}


def _fallback(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what draws again what looks wrong."""
    from qeff_zoo.runtime import FALLBACK

    if "temperature" in given:
        raise GenerationError(
            f"--temperature {given['temperature']} does not go with --fallback, which begins with 0 and tries higher "
            "ones; expected one of the two. Leave one out."
        )
    return dict(FALLBACK)
