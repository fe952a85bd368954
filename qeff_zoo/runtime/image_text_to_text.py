# SPDX-License-Identifier: Apache-2.0
"""An image-text-to-text package as a session: pictures and prompts in, generated text and metrics out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.runtime.media_text import FEATURE_CACHE_BYTES, USUAL, MediaTextSession, Prepared
from qeff_zoo.runtime.prefix_cache import PrefixChoices
from qeff_zoo.runtime.program import Array, Bounded, Program
from qeff_zoo.runtime.reading import Distant
from qeff_zoo.runtime.tokenizer import read_json
from qeff_zoo.runtime.vision import Vision


class ImageTextToTextSession(MediaTextSession):
    """An opened package of the task `image-text-to-text`.

    Args:
        folder: The package.
        program: Its language model, opened.
        vision: Its vision tower, opened; None of a package of --decode-only.
        chosen: What the package's recipe says of pictures: `images` of the manifest's `spec.task`.
        prefixes: As of `TextGenerationSession`.
        feature_cache_bytes: Memory for what was read of pictures, so that a second question costs no reading.

    Raises:
        GenerationError: Another task's package, or the KV cache does not fit into memory.
    """

    part, argument = "image", "images"
    reader: Vision | Distant

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        vision: Program | None = None,
        chosen: Mapping[str, Any],
        prefixes: PrefixChoices = USUAL,
        feature_cache_bytes: int = FEATURE_CACHE_BYTES,
    ) -> None:
        told = chosen["images"]
        config = read_json(folder / "config.json")
        if feature_cache_bytes:  # those of a prompt at least, where they are a state
            memory: Mapping[str, Array] = program.memory or {}
            read = {one.name for one in program.states if not one.written} & memory.keys()
            of_row = sum(memory[name][0].nbytes for name in read)
            feature_cache_bytes = max(feature_cache_bytes, of_row)
        reads = (config, feature_cache_bytes, told)
        reader = Distant(None, *reads) if vision is None else Vision(vision, *reads)
        super().__init__(folder, program, reader=reader, told=told, prefixes=prefixes)
        self._processor: Any = None

    def prepare(self, given: Any) -> Prepared:
        """Make the arrays of a picture that the vision program takes.

        Args:
            given: A path, the bytes of a file, a Pillow image, an array, or what a processor has prepared.

        Raises:
            MediaError: It cannot be read.
            CheckpointError: The package does not say how pictures are prepared.
        """
        from qeff_zoo.media.image_bounds import bounded
        from qeff_zoo.media.image_processor import load_image_processor

        if isinstance(given, Mapping):
            return given
        if self._processor is None:
            self._processor = load_image_processor(self.folder)
            if most := self._most_patches():
                self._processor = bounded(self._processor, most)
        made: Prepared = self._processor([given])
        return made

    def _most_patches(self) -> int:
        """Return how many patches a picture may have, where programs that read them have fixed sizes; else 0."""
        if isinstance(self.reader, Distant):
            shape = read_json(self.folder / "manifest.json")["spec"]["shape"]
            return max(shape.get("patches", ()), default=0)
        program = self.reader.program
        return program.most_patches if isinstance(program, Bounded) else 0
