# SPDX-License-Identifier: Apache-2.0
"""Encoder prompts of image-to-text models: a prompt in, its tokens after the image's placeholder tokens out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.engine.prompts import Prompt

_REST = "{input}"


@dataclass(frozen=True, kw_only=True)
class ImagePrompts:
    """Format of a package's encoder prompts.

    Args:
        placeholder: Placeholder token of the image.
        rows: Number of placeholder tokens.
        questions: Prompts of task tokens, see `qeff_zoo.recipe_media.ImagePrompt`.
        begin: Token before a prompt.
        end: Token after it.
    """

    placeholder: int
    rows: int
    questions: Mapping[str, str]
    begin: int
    end: int

    @classmethod
    def of(cls, folder: Path, settings: Mapping[str, Any]) -> "ImagePrompts":
        """Return the format of a package.

        Args:
            folder: The package.
            settings: Value `image_prompt` of `spec.task` in its manifest.
        """
        text = read_json(folder / "config.json")["text_config"]
        return cls(**settings, begin=text["bos_token_id"], end=text["eos_token_id"])

    def question(self, prompt: str) -> str:
        """Return a prompt with its task token replaced by text, as in transformers' processor.

        Raises:
            GenerationError: A task without input has further text in its prompt.
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
        """Return the tokens of a prompt, after the image's placeholder tokens.

        Args:
            prompt: Text; or token ids, which get no special tokens; None for the empty text.
            encode: Function that returns the tokens of a text, without special tokens around it.
        """
        if prompt is None or isinstance(prompt, str):
            text_ids = [self.begin, *encode(self.question(prompt or "")), self.end]
        else:
            text_ids = [int(token) for token in prompt]
        return [self.placeholder] * self.rows + text_ids
