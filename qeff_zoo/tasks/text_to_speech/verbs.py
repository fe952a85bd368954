# SPDX-License-Identifier: Apache-2.0
"""`run` of text-to-speech packages: texts in, files of speech out."""

import time
from pathlib import Path
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.tasks.text_to_speech.files import content_of
from qeff_zoo.tasks.text_to_speech.speech import Speech
from qeff_zoo.terminal.printing import print_json, table

_SHORT = 40  # characters of a text in the table


class SpeakTexts(Run):
    """Speaks texts, and writes each to a file."""

    def __call__(self, session: Any) -> None:
        """Speak, write and print."""
        given = self.arguments
        options = session.options(speaker=given.voice, speed=given.speed, seed=given.seed)
        read = [session.read(text) for text in self.prompts]  # refused before anything is spoken
        speeches, rows = list[Speech](), list[list[Any]]()
        for text, parts in zip(self.prompts, read, strict=True):
            begun = time.perf_counter()
            speech = Speech.joined([*session.speak(parts, options)])
            factor = speech.seconds / (time.perf_counter() - begun)
            speeches.append(speech)
            shown = text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
            rows.append(
                [shown, f"{speech.seconds:.2f}", f"{speech.sampling_rate:,}", f"{factor:.1f}"]
            )
        for path, speech in zip(given.output, speeches, strict=False):
            suffix = Path(path).suffix.lower().removeprefix(".")
            write_durably(Path(path), content_of(speech, suffix))
        if given.json:
            outputs = [
                {
                    "text": text,
                    "audio": speech.audio.tolist(),
                    "sampling_rate": speech.sampling_rate,
                }
                for text, speech in zip(self.prompts, speeches, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        print(table(rows, ["text", "seconds", "samples/s", "times real time"]))
