# SPDX-License-Identifier: Apache-2.0
"""Base class of encoder-decoder sessions, whose encoder reads a text or an image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.decoding.encoder_inputs import Sources
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.text_generation import TextGenerationSession
from qeff_zoo.runtime.program import Program


class WritingSession(TextGenerationSession):
    """An opened package with programs `encoder` and `decoder`. Its generation_config.json sets the first tokens.

    Args:
        folder: The package.
        program: Opened decoder of the package.
        encoder: Opened encoder of the package.

    Raises:
        GenerationError: The package is of another task, or its KV cache does not fit into memory.
    """

    sources: Sources
    #: Hub pipeline tag, and the kind of the encoder's input.
    task: ClassVar[str]
    reads: ClassVar[str]

    def __init__(self, folder: Path, program: Program, *, encoder: Program) -> None:
        super().__init__(
            folder, program, prefixes=PrefixCacheOptions(bytes=0)
        )  # prompts of one token
        self.sources = Sources(encoder, program.memory)
        #: First token of the decoder.
        self.start = self._first_token()

    def _first_token(self) -> int:
        """Return the first token of the decoder.

        Raises:
            GenerationError: The files have none.
        """
        settings = GenerationSettings.of(
            self._published, {"decoder_start_token_id", "bos_token_id"}
        )
        start = settings.decoder_start_token_id
        start = settings.bos_token_id if start is None else start
        if start is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no decoder_start_token_id; expected the token that answers begin "
                "with, in generation_config.json. Add it to the checkpoint, and build again."
            )
        return start

    def _begun(self, begun: Sequence[int], **choices: Any) -> Request:
        """Return a request for the decoder; the caller adds the encoder's input.

        Args:
            begun: First tokens of the decoder.
            **choices: Arguments of `TextGenerationSession.request`.
        """
        for name in ("grammar", "documents"):
            if choices.get(name):
                raise GenerationError(
                    f"{name!r} does not apply to {self.task}: the {self.reads} is read whole, and its package says "
                    "how an answer begins and ends. Expected none. Leave it out."
                )
        return super().request([*begun], **choices)
