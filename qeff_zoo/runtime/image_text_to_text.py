# SPDX-License-Identifier: Apache-2.0
"""An image-text-to-text package as a session: pictures and prompts in, generated text and metrics out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sights import Sights, arrange
from qeff_zoo.runtime.text_generation import PREFIX_CACHE_BYTES, TextGenerationSession
from qeff_zoo.runtime.tokenizer import read_json
from qeff_zoo.runtime.vision import Vision

#: One picture as a processor prepares it: `pixel_values`, and what else the model's forward takes of it.
Prepared: TypeAlias = Mapping[str, Array]
#: Bytes that the features of pictures may take, unless it is told otherwise.
FEATURE_CACHE_BYTES = 64 << 20


class ImageTextToTextSession(TextGenerationSession):
    """An opened package of the task `image-text-to-text`.

    Args:
        folder: The package.
        program: Its language model, opened.
        vision: Its vision tower, opened.
        chosen: What the package's recipe says of pictures: `images` of the manifest's `spec.task`.
        prefix_cache_bytes: As of `TextGenerationSession`.
        feature_cache_bytes: Memory for what was read of pictures, so that a second question costs no reading.

    Raises:
        GenerationError: Another task's package, or the KV cache does not fit into memory.
    """

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        vision: Program,
        chosen: Mapping[str, Any],
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
        feature_cache_bytes: int = FEATURE_CACHE_BYTES,
    ) -> None:
        super().__init__(folder, program, prefix_cache_bytes=prefix_cache_bytes)
        self.config = read_json(folder / "config.json")
        self.images = chosen["images"]
        self.vision = Vision(vision, self.config, feature_cache_bytes)
        #: The token that stands for a row of a picture's features.
        self.placeholder = _id(self.config, self.images["token"])

    def run_of(self, rows: int) -> list[int]:
        """Return the tokens that a picture of so many rows takes in a prompt."""
        around = [
            [
                one if isinstance(one, int) else _id(self.config, one)
                for one in self.images.get(name, ())
            ]
            for name in ("before", "after")
        ]
        return [*around[0], *[self.placeholder] * rows, *around[1]]

    def sights(self, tokens: Sequence[int], pictures: Sequence[Prepared]) -> Sights | None:
        """Read the pictures of a prompt.

        Args:
            tokens: With one placeholder for each row of the pictures' features.
            pictures: In the order of the prompt.
        """
        seen = [self.vision.look(picture) for picture in pictures]
        return arrange(tokens, self.placeholder, seen, int(self.images.get("axes", 1)))


def _id(config: Mapping[str, Any], name: str) -> int:
    """Return a token that a config names; older ones call it an index."""
    older = name.replace("_id", "_index")
    found = config.get(name, config.get(older))
    if found is None:
        raise GenerationError(
            f"config.json of the package has no {name!r}; expected the id of the token that stands for pictures. Add "
            "it to the checkpoint's config.json, and build again."
        )
    return int(found)
