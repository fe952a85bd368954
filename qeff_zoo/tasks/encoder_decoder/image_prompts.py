# SPDX-License-Identifier: Apache-2.0
"""What is asked about a picture, as an encoder reads both: a prompt in, its tokens behind those of the picture out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.prompts import Prompt
from qeff_zoo.runtime.tokenizer import read_json

_REST = "{input}"


@dataclass(frozen=True, kw_only=True)
class PicturePrompts:
    """How prompts of a package are written.

    Args:
        placeholder: Token in the places of a picture.
        rows: How many there are.
        questions: See `qeff_zoo.recipe_media.Asked`.
        begin: Token before a prompt.
        end: Token behind it.
    """

    placeholder: int
    rows: int
    questions: Mapping[str, str]
    begin: int
    end: int

    @classmethod
    def of(cls, folder: Path, asked: Mapping[str, Any]) -> "PicturePrompts":
        """Open those of a package.

        Args:
            folder: The package.
            asked: `asked` of `spec.task` of its manifest.
        """
        text = read_json(folder / "config.json")["text_config"]
        return cls(**asked, begin=text["bos_token_id"], end=text["eos_token_id"])

    def question(self, prompt: str) -> str:
        """Return what a prompt says to the model, with a task's token spelled out as transformers' processor does.

        Raises:
            GenerationError: A task that takes nothing else has more in its prompt.
        """
        for task, question in self.questions.items():
            if task not in prompt:
                continue
            if _REST in question:
                return question.replace(_REST, prompt.replace(task, "").strip())
            if prompt != task:
                raise GenerationError(
                    f"The prompt {prompt!r} has more than the task {task}; expected {task} alone, which takes no more. "
                    "Leave the rest out."
                )
            return question
        return prompt

    def tokens(self, prompt: Prompt | None, encode: Callable[[str], list[int]]) -> list[int]:
        """Return the tokens of a prompt, behind those in the places of a picture.

        Args:
            prompt: Text; or token ids, to which none is added; None for the empty text.
            encode: Returns the tokens of a text, without special ones around it.
        """
        if prompt is None or isinstance(prompt, str):
            told = [self.begin, *encode(self.question(prompt or "")), self.end]
        else:
            told = [int(token) for token in prompt]
        return [self.placeholder] * self.rows + told
