# SPDX-License-Identifier: Apache-2.0
"""Structured output: JSON of a schema, a regular expression, one of several texts, or a grammar.

llguidance computes before each token which ones the grammar allows; the others cannot be sampled.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qeff_zoo.errors import GenerationError, NoTokenError, Translating
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.closed_schemas import closed
from qeff_zoo.runtime.text.distinct_guide import DistinctGuide, Spellings
from qeff_zoo.runtime.text.distinct_places import Places
from qeff_zoo.runtime.text.json_schemas import narrowed, without_distinct
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.runtime.text.vocabulary import Vocabulary

_KEPT = 32  # compiled grammars cached per session
#: Characters of a grammar that is compiled in a fraction of a second, whatever it is; but for one with these words:
#: llguidance makes as many states as the number of `multipleOf`, which a text may hide by an escape.
_QUICK = 4096
_SLOW = re.compile(r"multipleOf|\\u")
_VOCABULARIES = 4  # with different tokens that are no text, cached per session: one for each chat format, and one more
#: Maximum work on an expression; a fifth of llguidance's limit: a hostile one takes half a second and not eight.
_FUEL = 200_000
#: Whitespace between the tokens of JSON: none, a space, or a line break with indentation. More would let a weak model
#: generate whitespace without end.
BLANKS = r" ?|\n {0,32}"
#: A rule of GBNF, in one line; those of Lark have a single colon.
_GBNF_RULE = re.compile(r"^[^\S\n]*+[\w-]++[^\S\n]*+::=", re.MULTILINE)
#: A token's name in Lark (the group); or a string, an expression or a comment, which may have the same text. Their
#: ends are optional: a search for an end that is missing, from each of many beginnings, takes quadratic time.
_LARK_NAME = re.compile(r'"(?:[^"\\\n]++|\\.)*+"?|/(?:[^/\\\n]++|\\.)++/?|//[^\n]*|(<[^<>\s]+>)')


@dataclass(frozen=True)
class Grammar:
    """Grammar of structured output; created by `json`, `regex`, `choice`, `lark` and `gbnf`.

    Args:
        source: Grammar in llguidance's syntax.
        marks: Added tokens that the grammar names by id, and that no text of it has; special tokens are such anyway.
        places: Places of JSON with arrays whose items differ; None without any.
        other: Grammar that the output may follow instead; None without one.

    Example:
        >>> colour = Grammar.json(
        ...     {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}}
        ... )
        >>> session.generate("A fire engine is", grammar=colour)[0].text  # doctest: +SKIP
        '"red"'
    """

    source: str
    marks: frozenset[int] = frozenset()
    places: Places | None = None
    other: "Grammar | None" = None

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str | None = None) -> "Grammar":
        """Return the grammar of JSON by a schema, or of any JSON object without one.

        Args:
            schema: A JSON Schema, or its text. Unsupported keywords, such as `$dynamicRef`, are rejected when the
                grammar is used; see `json_schemas` for those that are replaced.

        Raises:
            GenerationError: If the schema is not a JSON object.
        """
        wanted: Any = {"type": "object"} if schema is None else schema
        try:
            wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
            wanted = narrowed(wanted)
            equal, wanted = json.dumps(without_distinct(wanted)), json.dumps(wanted)
            source = _matching().grammar_from_json_schema(
                equal, overrides={"whitespace_pattern": BLANKS}
            )
        except ValueError as error:
            raise GenerationError(
                f"Cannot hold an answer to a JSON Schema of {len(str(wanted)):,} characters: {error}. Expected a JSON "
                "object. Correct it."
            ) from error
        return cls(source, places=None if equal == wanted else Places(form=wanted))

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Return the grammar of texts that match a whole regular expression; in Rust's syntax, without look-around."""
        return cls(_matching().grammar_from_regex(pattern))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """Return the grammar of one of several texts."""
        if not texts or "" in texts:
            raise GenerationError(
                f"Cannot choose among {list(texts)!r}; expected at least one text, none of them empty. Correct them."
            )
        alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return cls.lark(f"start: {alternatives}")

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """Return a context-free grammar in llguidance's variant of Lark; its rule `start` is the whole text."""
        return cls(_matching().grammar_from_lark(text))

    @classmethod
    def gbnf(cls, text: str) -> "Grammar":
        """Return a context-free grammar in llama.cpp's GBNF; its rule `root` is the whole text.

        Raises:
            GenerationError: If the text is not GBNF.
        """
        from llguidance.gbnf_to_lark import gbnf_to_lark

        def failure(error: BaseException) -> GenerationError:
            return GenerationError(
                f"Cannot read a grammar of {len(text):,} characters as GBNF: {str(error) or type(error).__name__}. "
                "Expected rules `name ::= …`, one of them `root`. Correct it."
            )

        with Translating(failure):  # the converter raises `Exception` itself
            return cls.lark(gbnf_to_lark(text))

    @classmethod
    def context_free(cls, text: str) -> "Grammar":
        """Return a context-free grammar in GBNF if its rules are written with `::=`, else in Lark.

        Raises:
            GenerationError: If the text has such rules and is not GBNF.
        """
        return cls.gbnf(text) if _GBNF_RULE.search(text) else cls.lark(text)

    def closed(self) -> "Grammar":
        """Return the grammar with objects that have the keys of their properties alone, see `closed_schemas`."""
        try:
            parts = json.loads(self.source)["grammars"]
        except ValueError:  # Lark is not wrapped
            return self
        for part in parts:
            if "json_schema" in part:
                part["json_schema"] = closed(part["json_schema"])
        other = self.other and self.other.closed()
        return replace(self, source=json.dumps({"grammars": parts}), other=other)


class Guides:
    """Factory of guides for one package.

    Args:
        tokenizer: Tokenizer of the package; None without one.
        vocab_size: Size of the model's logits.
        eos_token_ids: Tokens that end generation.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, sorted(eos_token_ids)
        self._compiled = lru_cache(_KEPT)(self._compile)
        self._checked: dict[Grammar, None] = {}
        self._vocabulary = lru_cache(_VOCABULARIES)(self._vocabulary_with)

    def is_quick(self, grammar: Grammar) -> bool:
        """Return whether `check` takes a fraction of a second: for a grammar that was checked, or a short one."""
        if grammar.other and not self.is_quick(grammar.other):
            return False
        if self._tokenizer is None or grammar in self._checked:
            return True
        return len(grammar.source) <= _QUICK and not _SLOW.search(grammar.source)

    def trial(self, grammar: Grammar) -> "partial[None]":
        """Return a call that checks a grammar in another process, which can be stopped."""
        assert self._tokenizer
        folder, eos = self._tokenizer.folder, tuple(self._eos)
        return partial(_check_in, folder, self._vocab_size, eos, grammar)

    def check(self, grammar: Grammar) -> None:
        """Compile a grammar. Thread-safe.

        Raises:
            GenerationError: If the grammar is invalid or too complex, or the package's tokenizer has no token texts.
        """
        self._compiled(grammar)
        if grammar.other:
            self.check(grammar.other)
        if grammar.places:
            _ = self._spellings  # which take a fraction of a second with a large vocabulary
        self._checked[grammar] = None
        while len(self._checked) > _KEPT:
            with suppress(KeyError, RuntimeError):  # another thread was faster
                del self._checked[next(iter(self._checked))]

    def guide(self, grammar: Grammar) -> "Guide":
        """Return the guide of one generation.

        Raises:
            GenerationError: On the same conditions as `check`.
        """
        if grammar.other:
            return EitherGuide(
                [self.guide(one) for one in (replace(grammar, other=None), grammar.other)]
            )
        matcher = self._compiled(grammar).deep_copy()
        if grammar.places:
            return DistinctGuide(matcher, grammar.places, self._spellings, grammar.marks)
        return GrammarGuide(matcher, self._vocab_size)

    @cached_property
    def _spellings(self) -> Spellings:
        known = (self._tokenizer and self._tokenizer.token_bytes) or {}
        special = {*self._eos, *(self._tokenizer.special if self._tokenizer else ())}
        tokens = range(self._vocab_size)
        return Spellings([b"" if token in special else known.get(token, b"") for token in tokens])

    def _vocabulary_with(self, marks: frozenset[int]) -> Any:
        """Return the vocabulary for grammars that name some ordinary tokens by id."""
        from llguidance import LLTokenizer

        if self._tokenizer is None:
            raise GenerationError(
                "This package has no tokenizer.json and cannot hold answers to a form; expected one. Leave the grammar "
                "out."
            )
        if self._tokenizer.token_bytes is None:
            raise GenerationError(
                "Cannot hold answers to a form with this package's tokenizer: its decoder is neither of bytes nor with "
                "bytes for unknown characters. Expected one whose tokens are bytes or pieces of text. Leave the "
                "grammar out."
            )
        own = self._tokenizer.special.keys() | {*self._eos}
        vocabulary: Any = Vocabulary(self._tokenizer, self._vocab_size, marks | own)
        try:
            return LLTokenizer(vocabulary, eos_token=self._eos or None)
        except ValueError as error:
            raise GenerationError(
                f"Cannot hold answers to a form with this package's tokenizer: {error}. Expected EOS tokens of the "
                "vocabulary. Leave the grammar out."
            ) from error

    def _compile(self, grammar: Grammar) -> Any:
        from llguidance import LLParserLimits

        named = grammar.marks | self._named(grammar.source)
        special = self._tokenizer.special if self._tokenizer else {}
        tokenizer = self._vocabulary(frozenset(named - special.keys()))
        limits = LLParserLimits(initial_lexer_fuel=_FUEL, verbose_errors=False)
        source = grammar.source
        matcher = _matching()(tokenizer, source, log_level=0, limits=limits)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())
            raise GenerationError(
                f"Cannot hold an answer to this form: {reason}. Expected a JSON Schema, a regular expression or a "
                "grammar that llguidance reads. Correct it, or leave it out."
            )
        matcher.compute_bitmask()  # the first call takes longest, and no request waits for it here
        return matcher

    def _named(self, source: str) -> frozenset[int]:
        """Return the ordinary tokens that Lark names, such as `<tool_call>`."""
        ordinary = self._tokenizer.ordinary if self._tokenizer else {}
        if not any(text in source for text in ordinary.values()):
            return frozenset()
        names = {name[1] for text in _lark_of(source) for name in _LARK_NAME.finditer(text)}
        return frozenset(token for token, text in ordinary.items() if text in names)


@lru_cache(4)
def _guides_in(folder: Path, vocab_size: int, eos: tuple[int, ...]) -> Guides:
    return Guides(Tokenizer(folder), vocab_size, eos)


def _check_in(folder: Path, vocab_size: int, eos: tuple[int, ...], grammar: Grammar) -> None:
    """Check a grammar for a package; see `Guides.check`."""
    _guides_in(folder, vocab_size, eos).check(grammar)


class Guide(Protocol):
    """Guide of one generation, token by token."""

    def allowed(self) -> Array:
        """Return a mask of the allowed next tokens, (vocab,).

        Raises:
            GenerationError: If no token is allowed.
        """

    def allows(self, token: int) -> bool:
        """Whether a token may come next; far less work than all of `allowed`."""

    def take(self, token: int) -> bool:
        """Advance by an allowed token.

        Returns:
            Whether the output is complete, so that no token may follow.
        """


class GrammarGuide:
    """Guide that keeps one generation to its grammar.

    Args:
        matcher: Matcher in its initial state.
        vocab_size: Size of the model's logits.
    """

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def allowed(self) -> Array:
        """See `Guide`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(bool)
        if not mask.any():
            raise NoTokenError(
                f"No token goes on with the answer: {self._matcher.get_error() or 'it is complete'}. Expected a form "
                "that the vocabulary can spell. Make it simpler."
            )
        return mask

    def allows(self, token: int) -> bool:
        """See `Guide`."""
        return bool(self._matcher.validate_tokens([token]))

    def take(self, token: int) -> bool:
        """See `Guide`."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())


class EitherGuide:
    """Guide that keeps one generation to one of several forms, whichever it turns out to be.

    Args:
        guides: Guides of the forms in their initial states.
    """

    def __init__(self, guides: Sequence[Guide]) -> None:
        self._guides = guides

    def allowed(self) -> Array:
        """See `Guide`."""
        masks, failed = [], None
        for guide in self._guides:
            try:
                masks.append(guide.allowed())
            except NoTokenError as error:  # another form may go on
                failed = error
        if failed and not masks:
            raise failed
        mask: Array = np.logical_or.reduce(masks)
        return mask

    def allows(self, token: int) -> bool:
        """See `Guide`."""
        return any(guide.allows(token) for guide in self._guides)

    def take(self, token: int) -> bool:
        """See `Guide`."""
        self._guides = [guide for guide in self._guides if guide.allows(token)]
        complete = [guide.take(token) for guide in self._guides]
        return all(complete)


def _lark_of(source: str) -> list[str]:
    """Return the texts in Lark of a grammar in llguidance's syntax."""
    try:
        parts = json.loads(source)["grammars"]
    except ValueError:  # Lark is not wrapped
        return [source]
    return [text for part in parts if (text := part.get("lark_grammar"))]


def _matching() -> Any:
    from llguidance import LLMatcher  # a slow import, which free text does not need

    return LLMatcher
