# SPDX-License-Identifier: Apache-2.0
"""`run` of transcription packages: recordings in, text, times or JSON out."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qeff_zoo.contract.commands import TIMES
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.audio import read_audio
from qeff_zoo.terminal.printing import print_generated, print_json, table


class TranscribeByLabels:
    """Transcribes recordings with a CTC model, with word-level timestamps.

    Args:
        task: Name of the package's task.
        prompts: Prompts of the command.
        arguments: Arguments of the command.
    """

    def __init__(self, task: str, prompts: list[str], arguments: argparse.Namespace) -> None:
        self.prompts, self.arguments = prompts, arguments
        self.options = self.chosen()

    def chosen(self) -> dict[str, Any]:
        """Return the arguments of the session's `transcribe`."""
        return {}

    def timed(self, transcription: Any) -> tuple[str, Any]:
        """Return the timed parts of a transcription, and their kind."""
        return "word", transcription.words

    def __call__(self, session: Any) -> None:
        """Transcribe and print, one recording after the other."""
        arguments = self.arguments
        # One that cannot be read is reported before hours of another are transcribed.
        for path in arguments.audio[1:]:
            read_audio(path, session.rate)
        for path in arguments.audio:
            (transcription,) = session.transcribe(path, **self.options)
            if arguments.json:
                print_json({"audio": str(path), **asdict(transcription)})
            elif arguments.timestamps or arguments.word_timestamps:
                noun, parts = self.timed(transcription)
                rows = [[f"{part.start:.2f}", f"{part.end:.2f}", part.text] for part in parts]
                print(table(rows, ["from s", "to s", noun]))
            else:
                print_generated(transcription.text)


class TranscribeByTokens(TranscribeByLabels):
    """Transcribes or translates recordings token by token, with timestamps of words or segments."""

    def chosen(self) -> dict[str, Any]:
        """Return the arguments of the session's `transcribe`."""
        arguments = self.arguments
        given = {
            "language": arguments.language,
            "task": "translate" if arguments.translate else None,
            "target_language": arguments.target_language,
            "prompt": " ".join(self.prompts) or None,
            "temperature": arguments.temperature,
            "seed": arguments.seed,
            "generation_len": arguments.generation_len,
        }
        given = {name: value for name, value in given.items() if value is not None}
        times = {name: True for name in TIMES if getattr(arguments, name)}
        return (_fallback(given) if arguments.temperature_fallback else {}) | given | times

    def timed(self, transcription: Any) -> tuple[str, Any]:
        """Return the timed parts of a transcription, and their kind."""
        return (
            ("word", transcription.words)
            if transcription.words
            else ("segment", transcription.segments)
        )


def _fallback(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that retry doubtful windows."""
    from qeff_zoo.tasks.speech.transcription_options import TEMPERATURE_FALLBACK

    if "temperature" in given:
        raise GenerationError(
            f"--temperature {given['temperature']} does not go with --temperature-fallback, which begins with 0 "
            "and tries higher ones; expected one of the two. Leave one out."
        )
    return dict(TEMPERATURE_FALLBACK)
