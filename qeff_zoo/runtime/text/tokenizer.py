# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, by a package's tokenizer.json; and streamed text, token by token."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import normalizers

from qeff_zoo.checkpoint.text_growth import excess
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import GenerationError, PackageError, Translating, is_panic
from qeff_zoo.package.files import damaged, read_json
from qeff_zoo.runtime.memory import return_freed
from qeff_zoo.runtime.text.token_bytes import bytes_of_tokens, is_continuation

_DECODED = 8  # tokens of a stream that are decoded at once: two calls for each token cost more
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
#: Maximum number of characters of a token, except in unusual texts.
CHARACTERS_OF_TOKEN = 16
#: English text as words and punctuation -> its usual form, in transformers' order.
_TIDY = {
    **{f" {mark}": mark for mark in ".?!,"},
    " ' ": "'",
    **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")},
}
#: Ends of a text that may begin one of these.
_UNTIDY = tuple({untidy[:length] for untidy in _TIDY for length in range(1, len(untidy))})


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Tokens of a text, or of a pair of texts.

    Args:
        ids: Token ids.
        type_ids: 1 for every token in the second text of a pair if the tokenizer distinguishes them, else 0.
        offsets: Start and end of every token in its text, in characters.
        special: Whether a token was added to the text, for every token.
        cut: Whether the text was truncated.
        prompt_tokens: Number of the first tokens that are those of a prompt, for models that do not pool them.
        attended: Number of the first tokens that tokens attend to; None for all.
    """

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    special: list[bool]
    cut: bool = False
    prompt_tokens: int = 0
    attended: int | None = None

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "Encoded":
        """Return token ids unchanged, each with its index as offset."""
        offsets = [(place, place + 1) for place in range(len(ids))]
        return cls(
            ids=list(ids), type_ids=[0] * len(ids), offsets=offsets, special=[False] * len(ids)
        )


@dataclass(frozen=True, kw_only=True)
class EncodedPair(Encoded):
    """Tokens of a pair of texts, whole, or some of them.

    Args:
        parts: Number of the text of every token, 0 or 1; None for a token that was added.
        words: Number of the word of every token within its text; None for a token without one.
    """

    parts: list[int | None]
    words: list[int | None]

    def at(self, indices: Sequence[int]) -> "EncodedPair":
        """Return some of the tokens.

        Args:
            indices: Indices of the tokens.
        """
        names = ("ids", "type_ids", "offsets", "special", "parts", "words")
        kept: dict[str, Any] = {
            name: [getattr(self, name)[place] for place in indices] for name in names
        }
        return replace(self, **kept)


_shared: ContextVar["dict[Path, Tokenizer] | None"] = ContextVar("tokenizers", default=None)


@contextmanager
def sharing_tokenizers() -> Iterator[None]:
    """Let sessions of one package that are opened in the block share its tokenizer, which takes seconds to read."""
    token = _shared.set(_shared.get() or {})
    try:
        yield
    finally:
        _shared.reset(token)


class Tokenizer:
    """Tokenizer of a package, with the results of transformers.

    Args:
        folder: A folder with tokenizer.json.

    Raises:
        PackageError: If the tokenizer is damaged; also raised by methods that tokenize.
    """

    def __init__(self, folder: Path) -> None:
        path = str(folder / "tokenizer.json")
        #: Folder of the tokenizer.
        self.folder = folder
        try:
            raw = read_regular(path)
        except OSError as error:
            raise damaged(path, error) from error
        if wrong := excess(raw):
            raise damaged(path, wrong)
        self._understood = Translating(partial(_explanation, path))
        with self._understood:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(raw)
        del raw
        return_freed()  # two thirds of what the library takes: its parser's copies of 262,144 tokens are 190 MB
        # A file has the settings of its last save; truncation and padding are set here.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        settings = read_json(folder / "tokenizer_config.json")
        self._tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))
        self._tidies = _tidies(settings, self._tokenizer.model)
        #: Side on which texts are truncated.
        self.truncation_side: Literal["left", "right"] = (
            "left" if settings.get("truncation_side") == "left" else "right"
        )
        # transformers passes only the inputs that the tokenizer lists to a model.
        listed = settings.get("model_input_names")
        #: Whether `decode` returns special tokens.
        self.shows_special = False
        #: Whether every text is converted to lower case first, beside what the file says.
        self.lowers = False
        #: Tokens that `decode` never returns.
        self.hidden: frozenset[int] = frozenset()
        self._has_types = not isinstance(listed, list) or "token_type_ids" in listed

    @classmethod
    def find(cls, folder: Path) -> "Tokenizer | None":
        """Return the tokenizer of a folder, if it has one; in `sharing_tokenizers` the same one every time."""
        if not cls.is_in(folder):
            return None
        shared = _shared.get()
        if shared is None:
            return cls(folder)
        if folder not in shared:
            shared[folder] = cls(folder)
        return shared[folder]

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether a folder has a tokenizer."""
        return (folder / "tokenizer.json").is_file()

    @cached_property
    def _anchor(self) -> list[int]:
        """Token that precedes others, since many decoders strip a leading space."""
        return self.encode("a", special_tokens=False)[-1:]

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Id of every token, added tokens included."""
        ids: dict[str, int] = self._tokenizer.get_vocab()
        return ids

    @property
    def json(self) -> str:
        """Whole tokenizer in the format of tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: Any text.
            special_tokens: Whether the tokenizer's post-processor adds special tokens, such as BOS.

        Raises:
            GenerationError: If the text has half of a surrogate pair.
        """
        _check(text)
        # As a batch, since the library's `encode` blocks all other threads.
        with self._understood:
            (encoding,) = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=special_tokens
            )
        return list(encoding.ids)

    def beginning(self, text: str, tokens: int) -> str:
        """Return a beginning of a text with at least twice as many tokens; the whole text if it has fewer.

        With it a long text can be rejected, or truncated, without being tokenized whole: the number of characters is
        no lower bound for tokens, since a tokenizer may drop or merge any number of them, such as spaces.
        """
        length = CHARACTERS_OF_TOKEN * tokens
        while length < len(text):
            if len(self.encode(text[:length], special_tokens=False)) >= 2 * tokens:
                return text[:length]
            length *= 2
        return text

    def encode_pair(self, first: str, second: str) -> EncodedPair:
        """Return all tokens of a pair of texts, with special tokens.

        Raises:
            GenerationError: If a text has half of a surrogate pair.
        """
        _check(first)
        _check(second)
        with self._understood:
            (encoding,) = self._tokenizer.encode_batch([(first, second)])
        return EncodedPair(
            ids=encoding.ids,
            type_ids=encoding.type_ids if self._has_types else [0] * len(encoding.ids),
            offsets=encoding.offsets,
            special=[bool(one) for one in encoding.special_tokens_mask],
            parts=encoding.sequence_ids,
            words=encoding.word_ids,
        )

    def encode_batch(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return the token ids of texts, with special tokens, truncated to `max_length`."""
        return [encoded.ids for encoded in self.encode_all(texts, max_length)]

    def encode_all(
        self,
        texts: Sequence[str | tuple[str, str]],
        max_length: int,
        side: Literal["left", "right"] | None = None,
        *,
        special_tokens: bool = True,
    ) -> list[Encoded]:
        """Return the tokens of texts and pairs, truncated to `max_length`.

        The longer text of a pair is truncated first, as in transformers.

        Args:
            texts: Texts and pairs of texts.
            max_length: Maximum number of tokens of each.
            side: Side on which they are truncated; None for the tokenizer's own.
            special_tokens: Whether the tokenizer's post-processor adds special tokens.

        Raises:
            GenerationError: If a text has half of a surrogate pair.
        """
        for text in texts:
            for part in (text,) if isinstance(text, str) else text:
                _check(part)
        side = side or self.truncation_side
        begun = texts
        if side == "right":
            begun = [
                self.beginning(text, max_length)
                if isinstance(text, str)
                else (self.beginning(text[0], max_length), self.beginning(text[1], max_length))
                for text in texts
            ]
        with self._understood:
            encodings = self._tokenizer.encode_batch(list(begun), add_special_tokens=special_tokens)
            for number, (whole, cut) in enumerate(zip(texts, begun, strict=True)):
                if cut == whole or isinstance(whole, str):
                    continue
                if _depends_on_lengths(encodings[number], max_length):
                    encodings[number] = self._tokenizer.encode(
                        *whole, add_special_tokens=special_tokens
                    )
        return [self._truncated(encoding, max_length, side) for encoding in encodings]

    def _truncated(self, encoding: tokenizers.Encoding, max_length: int, side: str) -> Encoded:
        """Return the tokens that truncation keeps of a text or pair, and the special tokens around them.

        The library's truncation takes time and memory for every combination of parts of the texts of a pair.
        """
        ids, offsets, special = encoding.ids, encoding.offsets, encoding.special_tokens_mask
        kept: Sequence[int] = range(len(ids))
        if cut := len(ids) > max_length:
            parts: dict[int | None, list[int]] = {None: [], 0: [], 1: []}
            for index, part in enumerate(encoding.sequence_ids):
                parts[part].append(index)
            most = max(0, max_length - len(parts[None]))
            for part, length in enumerate(_lengths(len(parts[0]), len(parts[1]), most)):
                start = len(parts[part]) - length if side == "left" else 0
                parts[part] = parts[part][start : start + length]
            kept = sorted(place for places in parts.values() for place in places)
        types = encoding.type_ids if self._has_types else [0] * len(ids)
        return Encoded(
            ids=[ids[place] for place in kept],
            type_ids=[types[place] for place in kept],
            offsets=[offsets[place] for place in kept],
            special=[bool(special[place]) for place in kept],
            cut=cut,
        )

    def use_lowercase(self) -> None:
        """Convert every text to lower case first, unless the tokenizer does so; added tokens are found before."""
        self.lowers = True
        before = self._tokenizer.normalizer
        parts: list[Any] = [before] if before else []
        if isinstance(before, normalizers.Sequence):
            parts = [before[place] for place in range(len(before))]
        if not any(isinstance(part, normalizers.Lowercase) for part in parts):
            self._stop_sharing()
            self._tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])

    def register(self, marker: str) -> None:
        """Let a prefix, or its first word, be one special token wherever it is in a text, if the vocabulary has it.

        Args:
            marker: Prefix of the texts of a ColBERT checkpoint, which its training inserted as a token.
        """
        for token in filter(None, (marker, next(iter(marker.split()), ""))):
            if self.token_id(token) is not None:
                if self._tokenizer.encode(token, add_special_tokens=False).tokens != [token]:
                    self._stop_sharing()
                    added = tokenizers.AddedToken(token, normalized=False, special=True)
                    self._tokenizer.add_special_tokens([added])
                return

    def _stop_sharing(self) -> None:
        """Leave tokenizers as they are in their files to sessions that are opened later."""
        shared = _shared.get() or {}
        if shared.get(self.folder) is self:
            del shared[self.folder]

    @cached_property
    def named(self) -> frozenset[int]:
        """Ids of the tokens that transformers counts as special: those that the settings name."""
        settings = read_json(self.folder / "tokenizer_config.json")
        texts: list[object] = [
            setting for name, setting in settings.items() if name.endswith("_token")
        ]
        for name in (
            "model_specific_special_tokens",
            "extra_special_tokens",
            "additional_special_tokens",
        ):
            further = settings.get(name) or ()
            texts += further.values() if isinstance(further, dict) else further
        contents = (text.get("content") if isinstance(text, dict) else text for text in texts)
        ids = (self.token_id(content) for content in contents if isinstance(content, str))
        return frozenset(token for token in ids if token is not None)

    @property
    def subword_prefix(self) -> str:
        """Text before tokens within a word, such as "##"; empty for a model without one."""
        return str(getattr(self._tokenizer.model, "continuing_subword_prefix", None) or "")

    def token_named(self, text: str | None, names: Sequence[str]) -> int | None:
        """Return the id of a token, or of the first special token that the settings have.

        Args:
            text: Text of the token; None for a special token.
            names: Names of special tokens in the settings, such as "mask_token".
        """
        if text is not None:
            return self.token_id(text)
        settings = read_json(self.folder / "tokenizer_config.json")
        values = (settings.get(name) for name in names)
        texts = (value.get("content") if isinstance(value, dict) else value for value in values)
        return next((self.token_id(string) for string in texts if isinstance(string, str)), None)

    @cached_property
    def added(self) -> dict[int, dict[str, Any]]:
        """Added tokens by id, each with its text and its settings."""
        names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        tokens = self._tokenizer.get_added_tokens_decoder()
        return {
            int(token): {name: getattr(value, name) for name in names}
            for token, value in tokens.items()
        }

    @cached_property
    def special(self) -> dict[int, str]:
        """Texts of special tokens by id."""
        return {token: value["content"] for token, value in self.added.items() if value["special"]}

    @cached_property
    def ordinary(self) -> dict[int, str]:
        """Texts of added tokens that are not special by id; decoded text always contains them."""
        return {
            token: value["content"] for token, value in self.added.items() if not value["special"]
        }

    @cached_property
    def token_bytes(self) -> dict[int, bytes] | None:
        """Bytes of every token by id; None if the decoder joins tokens in another way."""
        # The decoder gets the names of added tokens as the normalizer changes them.
        names = {token: name for name, token in self.vocabulary.items()}
        names |= {token: self.name(token) for token in self.added}
        return bytes_of_tokens(names, _state(self._tokenizer.decoder))

    @cached_property
    def completions(self) -> dict[int, bytes]:
        """Tokens that can only be the end of a character, or be within one."""
        known = self.token_bytes or {}
        return {token: data for token, data in known.items() if is_continuation(data)}

    @cached_property
    def _speller(self) -> tokenizers.Tokenizer:
        """Tokenizer of text within a text: without added tokens, and without a space before it."""
        parts = {
            "normalizer": _without_prefix(_state(self._tokenizer.normalizer)),
            "pre_tokenizer": _without_prefix(_state(self._tokenizer.pre_tokenizer)),
        }
        content = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [], **parts}
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        tokenizer.model = self._tokenizer.model
        return tokenizer

    def spell(self, text: str) -> list[int]:
        """Return tokens of a text within another one; none of them is an added token."""
        with self._understood:
            (encoding,) = self._speller.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], shown: Collection[int] = ()) -> str:
        """Return the text of token ids, without special tokens unless `shows_special`.

        Args:
            token_ids: Token ids.
            shown: Added tokens that the text contains as they are.
        """
        skips = not (self.shows_special or shown)
        hidden = self.hidden | self.special.keys() - {*shown} if shown else self.hidden
        kept = [token for token in token_ids if token not in hidden]
        if changed := {token for token in kept if token in shown and self._changes(token)}:
            text = self._joined(kept, changed)
        else:
            text = self._decoded(kept, skip_special_tokens=skips)
        return _tidied(text) if self._tidies else text

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included, as transformers' `decode` without other options."""
        text = self._decoded(token_ids)
        return _tidied(text) if self._tidies else text

    @cached_property
    def _changes(self) -> Callable[[int], bool]:
        """Whether the decoder changes an added token: adds a space before it, or replaces a character within it."""
        return cache(lambda token: self.piece(token) != self.added[token]["content"])

    def _joined(self, token_ids: Sequence[int], changed: Collection[int]) -> str:
        """Return the text of token ids, among them added tokens that the decoder would change."""
        texts, begun = list[str](), list[int]()
        for token in (*token_ids, None):
            if token is not None and token not in changed:
                begun.append(token)
                continue
            after = self._anchor if texts else []  # whose text keeps a space after it
            text = self._decoded([*after, *begun])
            texts.append(text.removeprefix(self._decoded(after)))
            if token is not None:
                texts.append(self.added[token]["content"])
            begun = []
        return "".join(texts)

    def is_open(self, text: str) -> bool:
        """Return whether further tokens may change the end of a text."""
        return text.endswith(_INCOMPLETE) or (self._tidies and text.endswith(_UNTIDY))

    def spelled(self, token_ids: Sequence[int]) -> str:
        """Return the text that `encode` converts to these tokens, if any: special tokens by their names."""
        return self._decoded(token_ids)

    def piece(self, token_id: int) -> str:
        """Return the text that one token adds, with a leading space; a special token by its name."""
        before = self._anchor
        texts = [self._decoded(tokens) for tokens in (before, [*before, token_id])]
        return texts[1].removeprefix(texts[0])

    def _decoded(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        with self._understood:
            return str(
                self._tokenizer.decode([*token_ids], skip_special_tokens=skip_special_tokens)
            )

    def name(self, token_id: int) -> str:
        """Return a token's text in the vocabulary; "" for an unknown id."""
        return str(self._tokenizer.id_to_token(token_id) or "")

    def token_id(self, token: str) -> int | None:
        """Return a token's id."""
        token_ = self._tokenizer.token_to_id(token)
        return None if token_ is None else int(token_)


class TextStream:
    """Text streamed by token; the returned pieces, joined, are the text of all tokens.

    A character may take several tokens: it is held back until it is complete. The exception are byte tokens that
    never complete a character: some decoders then also replace preceding bytes, which were returned already.

    Args:
        tokenizer: Tokenizer of the tokens.
        shown: Added tokens that the text contains as they are.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int] = ()) -> None:
        self._tokenizer, self._special = tokenizer, frozenset(shown)
        #: Newest tokens, some of them before the fresh ones, since a token's text may depend on the one before.
        self._tokens: list[int] = []
        self._shown, self._text = 0, ""  # of these tokens, those that were returned, and their text

    def push(self, token: int) -> str:
        """Add a token; return the text that is now complete, which may be empty."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens, self._special)
        fresh = text[len(self._text) :]
        if not fresh or self._tokenizer.is_open(fresh):
            return ""
        if len(self._tokens) >= _DECODED:
            del self._tokens[: self._shown]
            text = self._tokenizer.decode(self._tokens, self._special)
        self._shown, self._text = len(self._tokens), text
        return fresh

    def finish(self) -> str:
        """Return text that was held back."""
        text = self._tokenizer.decode(self._tokens, self._special)
        fresh, self._shown, self._text = text[len(self._text) :], len(self._tokens), text
        return fresh


def _state(component: Any) -> Any:
    """Return a component of a tokenizer in the format of tokenizer.json; None without one."""
    return None if component is None else json.loads(component.__getstate__())


def _without_prefix(component: Any) -> Any:
    """Return a normalizer or pre-tokenizer that adds no space before a text."""
    if component is None or component.get("type") == "Prepend":
        return None
    kept = {**component, "prepend_scheme": "never"} if "prepend_scheme" in component else component
    for name in ("normalizers", "pretokenizers"):
        if name in kept:
            kept = {**kept, name: [one for one in map(_without_prefix, kept[name]) if one]}
    return {**kept, "add_prefix_space": False} if "add_prefix_space" in kept else kept


def _depends_on_lengths(encoding: tokenizers.Encoding, max_length: int) -> bool:
    """Return whether the longer text of a truncated pair has one token more than the other."""
    parts = Counter(encoding.sequence_ids)
    most = max_length - parts[None]
    return most % 2 == 1 and min(parts[0], parts[1]) > most // 2


def _lengths(first: int, second: int, most: int) -> tuple[int, int]:
    """Return the numbers of tokens that are kept of two texts, of which the longer is truncated first."""
    short, long = sorted((first, second))
    if short + long > most:
        short = min(short, most // 2)
        long = min(long, most - short)
    return (short, long) if first <= second else (long, short)


def _tidies(settings: Mapping[str, Any], model: object) -> bool:
    """Return whether decoded text loses spaces as in transformers: for BPE only with a second setting."""
    cleans_up = bool(settings.get("clean_up_tokenization_spaces"))
    of_bpe = settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    return cleans_up and (not isinstance(model, tokenizers.models.BPE) or bool(of_bpe))


def _tidied(text: str) -> str:
    """Return a text without the spaces that transformers' `clean_up_tokenization` removes."""
    for untidy, tidy in _TIDY.items():
        text = text.replace(untidy, tidy)
    return text


def _explanation(path: str, error: BaseException) -> PackageError | GenerationError | None:
    """Return the error for an exception of the library: a damaged file, or a text that it cannot tokenize."""
    if is_panic(type(error)):
        return GenerationError(
            f"The tokenizer of {path!r} gives up on a text: {error}. Expected a text that its patterns match in "
            "bounded time. Change the text, or use the package of another checkpoint."
        )
    return damaged(path, error) if type(error) is Exception else None


def _check(text: str) -> None:
    try:
        text.encode()
    except (
        UnicodeEncodeError
    ) as error:  # from bytes that are not UTF-8, or a "\\ud83d" alone in JSON
        raise GenerationError(
            f"Character {error.start:,} of a text is {text[error.start]!r}, which is half of one; expected Unicode. "
            "Correct how the text is read."
        ) from error
