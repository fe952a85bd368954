# SPDX-License-Identifier: Apache-2.0
"""Languages of a translation model: its language tokens, and their positions in source and target."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.languages import code_of

#: `__fr__` of M2M-100, `fra_Latn` of NLLB, `fr_XX` of mBART, `>>fra<<` of Marian.
_OF_ANSWERS = re.compile(r"__([a-z]{2,4})__|([a-z]{3}_[A-Z][a-z]{3})|([a-z]{2}_[A-Z]{2})")
_OF_SOURCES = re.compile(r">>(.+)<<")


@dataclass(frozen=True, kw_only=True)
class Languages:
    """Language tokens in a vocabulary.

    Args:
        answers: Tokens by code that begin a target text.
        sources: Tokens by code that begin a source text, to select its target language.
    """

    answers: Mapping[str, int]
    sources: Mapping[str, int]

    @classmethod
    def read(cls, vocabulary: Mapping[str, int]) -> "Languages":
        """Find the tokens of languages."""

        def found(pattern: re.Pattern[str]) -> dict[str, int]:
            matches = ((pattern.fullmatch(token), number) for token, number in vocabulary.items())
            return {str(one[one.lastindex or 0]): number for one, number in matches if one}

        return cls(answers=found(_OF_ANSWERS), sources=found(_OF_SOURCES))

    def read_from(self, tokens: Sequence[int], language: str) -> list[int]:
        """Set the source language of a text.

        Args:
            tokens: Tokens of the text, with the tokenizer's default language token.
            language: Code or name of the language.

        Raises:
            GenerationError: The model does not support the language, or takes no source language.
        """
        requested, every = _token(self.answers, language), {*self.answers.values()}
        if not every & {*tokens}:
            raise GenerationError(
                f"The source's language is {language!r}, but this model's texts have no token for theirs; expected "
                "no source language. Leave it out."
            )
        return [requested if token in every else token for token in tokens]

    def write_to(self, tokens: Sequence[int], language: str) -> tuple[list[int], int | None]:
        """Set the target language of a translation.

        Args:
            tokens: Tokens of the text.
            language: Code or name of the language.

        Returns:
            The tokens of the text, and the first target token; None if the source text selects the language.

        Raises:
            GenerationError: The model does not support the language.
        """
        if self.sources and not self.answers:
            return [_token(self.sources, language), *tokens], None
        return [*tokens], _token(self.answers, language)


def _token(known: Mapping[str, int], language: str) -> int:
    """Return a language token by the model's own code, by the beginning of that code, or by name."""
    plain = language.strip().strip("<>_")
    code = code_of(plain)
    by_start = {entry.partition("_")[0]: entry for entry in known}
    for name in (plain, code, by_start.get(plain, ""), by_start.get(code, "")):
        if name in known:
            return known[name]
    shown = ", ".join(sorted(known)[:12]) + (", …" if len(known) > 12 else "")
    expected = (
        f"one of {shown}" if known else "none, since its vocabulary has no tokens of languages"
    )
    raise GenerationError(
        f"Language {language!r} is not known to this model; expected {expected}. Leave it out, or give one of those."
    )
