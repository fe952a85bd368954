# SPDX-License-Identifier: Apache-2.0
"""Session of a text2text-generation package: texts in, generated texts and metrics out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.contract import TEXT2TEXT
from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.runtime.engine.answers import Request, require_no_choices
from qeff_zoo.runtime.engine.prompts import Prompt
from qeff_zoo.runtime.engine.text_generation import Generation, Stream
from qeff_zoo.runtime.program import Program
from qeff_zoo.tasks.encoder_decoder.session import WritingSession
from qeff_zoo.tasks.encoder_decoder.translation import Languages


class Text2TextSession(WritingSession):
    """An opened package of the task `text2text-generation`.

    A prompt is the encoder's input; the package's generation_config.json sets the decoder's first tokens.

    Args:
        folder: The package.
        program: Opened decoder of the package.
        encoder: Opened encoder of the package.
        chosen: `spec.task` of the manifest.

    Raises:
        GenerationError: The package is of another task, or its KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/nllb")  # doctest: +SKIP
        >>> session.generate("Good morning", language="fra_Latn")[0].text  # doctest: +SKIP
        'Bonjour'
    """

    task = TEXT2TEXT
    translates = True
    reads = "text"

    def __init__(
        self, folder: Path, program: Program, *, encoder: Program, chosen: Mapping[str, Any]
    ) -> None:
        super().__init__(folder, program, encoder=encoder)
        self.languages = Languages.read(self.tokenizer.vocabulary if self.tokenizer else {})

    def generate(
        self,
        prompts: str | Sequence[Prompt | Request],
        *,
        language: str | None = None,
        source_language: str | None = None,
        stream: Stream | None = None,
        **choices: Any,
    ) -> list[Generation]:
        """Generate text for any number of texts.

        Args:
            prompts: Prompts, see `TextGenerationSession.generate`.
            language: Target language by code or name; None for the package's default.
            source_language: Source language of the texts; None for the tokenizer's default.
            stream: Callback for new text.
            **choices: Arguments of `TextGenerationSession.generate`.
        """
        options: dict[str, Any] = {"language": language, "source_language": source_language}
        every = [prompts] if isinstance(prompts, str) else prompts
        require_no_choices(every, {**options, **choices})
        requests = [
            one if isinstance(one, Request) else self.request(one, **options, **choices)
            for one in every
        ]
        return super().generate(requests, stream=stream)

    def request(
        self,
        prompt: Prompt,
        *,
        language: str | None = None,
        source_language: str | None = None,
        settings: GenerationSettings | None = None,
        **choices: Any,
    ) -> Request:
        """Create and validate a request. Thread-safe.

        Args:
            prompt: The text, or its token ids.
            language: Target language, see `generate`.
            source_language: Source language, see `generate`.
            settings: Generation settings; None for those of the session.
            **choices: Arguments of `TextGenerationSession.request`.

        Raises:
            GenerationError: The request cannot be served.
        """
        source = self.encode(prompt, chat=choices.pop("chat", False))
        settings = self.settings if settings is None else settings
        if source_language is not None:
            source = self.languages.read_from(source, source_language)
        if language is not None:
            source, first = self.languages.write_to(source, language)
            settings = replace(settings, forced_bos_token_id=first)
        self._check_source(source)
        begun = self._begun([self.start], settings=settings, **choices)
        return replace(
            begun, source=tuple(source), text=prompt if isinstance(prompt, str) else None
        )

    def _check_source(self, source: Sequence[int]) -> None:
        if not source:
            raise GenerationError(
                "A text of [] tokens cannot be read; expected at least one token. Give it some text."
            )
        if len(source) > self.sources.longest:
            raise self._too_long(f"{len(source):,}")
        vocab_size = self.decoder.vocab_size
        foreign = next((token for token in source if not 0 <= token < vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {vocab_size - 1:,}. "
                "Encode the text with the package's own tokenizer."
            )

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a prompt."""
        return self.sources.longest

    def _too_long(self, tokens: str, blocks: int = 0) -> ContextLengthError:
        return ContextLengthError(
            f"A text has {tokens} tokens; expected at most {self.longest:,}, the largest of the package's seq_lens. "
            "Shorten it, or build the package with a larger --seq-lens."
        )
