# SPDX-License-Identifier: Apache-2.0
"""Base class of encoder-decoder sessions, whose encoder reads a text or an image."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.answers import Request
from qeff_zoo.runtime.encoder_inputs import Sources
from qeff_zoo.runtime.logits_processors import LogitsProcessorSettings
from qeff_zoo.runtime.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.program import Program
from qeff_zoo.runtime.sampling import Sampling
from qeff_zoo.runtime.text_generation import TextGenerationSession


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
        self.rules = LogitsProcessorSettings.read(folder)

    def _begun(
        self,
        begun: Sequence[int],
        rules: LogitsProcessorSettings,
        *,
        generation_len: int | None,
        sampling: Sampling | None,
        **choices: Any,
    ) -> Request:
        """Return a request for the decoder under generation rules; the caller adds the encoder's input.

        Args:
            begun: First tokens of the decoder.
            rules: Rules of the package, perhaps modified.
            generation_len: Maximum number of tokens; None for the value of the rules.
            sampling: Sampling parameters; None for `default_sampling`.
            **choices: Arguments of `TextGenerationSession.request`.
        """
        for name in ("grammar", "documents"):
            if choices.get(name):
                raise GenerationError(
                    f"{name!r} does not apply to {self.task}: the {self.reads} is read whole, and its package says "
                    "how an answer begins and ends. Expected none. Leave it out."
                )
        sampling = self.default_sampling if sampling is None else sampling
        if sampling.repetition_penalty == 1:
            sampling = replace(sampling, repetition_penalty=rules.repetition_penalty)
        if generation_len is None:
            generation_len = rules.limit(len(begun))
        if choices.get("ignore_eos"):
            rules = replace(rules, last=None)
        made = super().request(
            [*begun], generation_len=generation_len, sampling=sampling, **choices
        )
        return replace(made, rules=rules)
