# SPDX-License-Identifier: Apache-2.0
"""`run` of encoder-decoders: texts to be translated or summarized, or images to be described."""

import argparse
import sys
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.text_generation.verbs import Generate, as_json, generation_of
from qeff_zoo.terminal.printing import print_generated, print_json


class GenerateFromText(Generate):
    """Generates a text from each text."""

    def more(self) -> dict[str, Any]:
        """Return the languages of a translation."""
        names = ("language", "source_language")
        given = {name: getattr(self.arguments, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


class DescribeImages:
    """Generates a text from each image.

    Args:
        task: Name of the package's task.
        prompts: Prompts of the command: at most one, with which every output begins.
        arguments: Arguments of the command.

    Raises:
        GenerationError: There is no image, or there are several prompts.
    """

    def __init__(self, task: str, prompts: list[str], arguments: argparse.Namespace) -> None:
        self.prompts, self.arguments = prompts, arguments
        if not arguments.image or len(prompts) > 1:
            raise GenerationError(
                f"There are {len(arguments.image)} images and {len(prompts)} prompts; expected images, and at most "
                "one prompt, with which each answer begins. Give --image FILE once for each image, and --prompt once "
                "or not at all."
            )

    def __call__(self, session: Any) -> None:
        """Generate and print."""
        arguments, images = self.arguments, list(self.arguments.image)
        stream = None
        if len(images) == 1 and not arguments.json:
            stream = lambda _, text: print_generated(text, end="")  # noqa: E731
        outputs = session.generate(
            fetch_each(images),
            prompt=self.prompts[0] if self.prompts else None,
            stream=stream,
            **generation_of(session, arguments),
        )
        pairs = list(zip(images, outputs, strict=True))
        if arguments.json:
            answer = [{"image": image, **as_json(output)} for image, output in pairs]
            print_json({"outputs": answer, "metrics": session.metrics.as_dict()})
            return
        if stream is not None:
            print()
        else:
            for image, output in pairs:
                print_generated(f"{image}\n-> {output.text}\n")
        print(session.metrics, file=sys.stderr)
