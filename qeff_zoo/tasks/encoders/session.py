# SPDX-License-Identifier: Apache-2.0
"""Base class of text encoder sessions: texts to calls, with padding to a specialization."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np

from qeff_zoo.checkpoint.sentence_transformers.settings import SIMILARITIES, read_settings
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.adapters import Adapters
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.sizes import EncoderSizes
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.texts import Text, TextReader, Texts
from qeff_zoo.runtime.text.tokenizer import Encoded

#: Input of a program that pools no tokens of a prompt.
_POOLED = "pooling_mask"
_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)


class _Calls:
    """Calls that run with an adapter."""

    ended = False


class EncoderSession:
    """Session of a package that reads a whole text in one call.

    Args:
        folder: The package.
        program: Opened program of the package.

    Raises:
        GenerationError: The package is of another task.
    """

    #: Hub pipeline tag, name of the graph's output, and whether it reads pairs of texts.
    task: ClassVar[str]
    output: ClassVar[str]
    takes_pairs: ClassVar[bool] = False
    #: Similarity of a model whose files set none.
    similarity_name: ClassVar[str] = SIMILARITIES[0]
    #: Whether it returns embeddings of tokens, for a package without pooling.
    has_states: bool = False
    #: Whether queries end with tokens that none attends to.
    masks_expansion: bool = False

    def __init__(self, folder: Path, program: Program) -> None:
        require(program, folder, self.task, {"input_ids", "attention_mask"}, {self.output})
        self.folder, self._program = folder, program
        #: Adapters that requests may select.
        self.adapters = Adapters(program, folder)
        #: Whether the program separates the texts of a pair by their token types.
        self.has_token_types = "token_type_ids" in program.inputs
        self.sizes = EncoderSizes.read(program.specializations)
        longest = self.sizes.seq_lens[-1]
        #: Settings of sentence-transformers: prompts, lengths and similarity.
        self.settings = read_settings(lambda name: read_json(folder / name), self.similarity_name)
        #: Whether the program pools no tokens of a prompt.
        self.excludes_prompts = _POOLED in program.inputs
        #: Maximum number of tokens; longer texts are truncated.
        self.max_length = min(self.settings.max_length, longest)
        self._reported_cut = False
        self.config = read_json(folder / "config.json")
        self._reader = TextReader.of_package(
            folder,
            self.settings,
            task=self.task,
            longest=longest,
            takes_pairs=self.takes_pairs,
            counts_prompt=self.excludes_prompts,
        )
        self.tokenizer, self.chat_template = self._reader.tokenizer, ChatTemplate.find(folder)
        self.vocab_size = self._reader.vocab_size

    @property
    def width(self) -> int:
        """Number of values for each text, or for each token."""
        return int(self._program.outputs[self.output].shape[-1])

    def encode(self, texts: Sequence[Texts]) -> list[list[int]]:
        """Tokenize texts as every request does; see `read`."""
        return [encoded.ids for encoded in self.read(texts)]

    def run(
        self,
        rows: Sequence[Sequence[int]],
        seq_len: int | None = None,
        types: Sequence[Sequence[int]] | None = None,
        slot: int = 0,
        prompt_tokens: Sequence[int] | None = None,
        attended: Sequence[int | None] = (),
    ) -> Array:
        """Run one call.

        Args:
            rows: Token ids of at most `batch_size` texts.
            seq_len: Sequence length of the package; None for the shortest that fits all rows.
            types: Token types of the same texts, for graphs that take them; None for all 0.
            slot: Slot of an adapter; 0 for the base model.
            prompt_tokens: Number of the first tokens of each text that are not pooled, for graphs that exclude
                prompts; None for no such tokens.
            attended: Number of the first tokens of each text that tokens attend to; None for all.

        Returns:
            float32, (rows, …): the graph's output for each row.
        """
        longest = max(map(len, rows))
        seq_len = seq_len or self.sizes.covering(longest)
        shape = (self.sizes.batch_size, seq_len)
        input_ids = np.full(shape, self.config.get("pad_token_id") or 0, np.int64)
        feeds = {"input_ids": input_ids, "attention_mask": np.zeros(shape, np.int64)}
        # Unused rows repeat the first, since a row without tokens has no output.
        for row, tokens in enumerate(_filled(rows, self.sizes.batch_size)):
            input_ids[row, : len(tokens)] = tokens
            count = attended[row] if row < len(attended) else None
            feeds["attention_mask"][row, : len(tokens) if count is None else count] = 1
        if self.has_token_types:
            feeds["token_type_ids"] = np.zeros(shape, np.int64)
            for row, kinds in enumerate(_filled(types, self.sizes.batch_size) if types else ()):
                feeds["token_type_ids"][row, : len(kinds)] = kinds
        if self.excludes_prompts:
            feeds[_POOLED] = feeds["attention_mask"].copy()
            for row, count in enumerate(_filled(prompt_tokens or [0], self.sizes.batch_size)):
                feeds[_POOLED][row, :count] = 0
        feeds |= self.adapters.given([slot] * self.sizes.batch_size)
        output = self._program.run(feeds)[self.output]
        answers: Array = output[: len(rows)].astype(np.float32, copy=False)
        return answers

    def run_encoded(self, texts: Sequence[Encoded], slot: int = 0) -> Iterable[Array]:
        """Run one call for at most `batch_size` texts, and return an output for each; see `run`."""
        return self.run(
            [text.ids for text in texts],
            types=[text.type_ids for text in texts],
            slot=slot,
            prompt_tokens=[text.prompt_tokens for text in texts],
            attended=[text.attended for text in texts],
        )

    def _answer(self, encoded: Sequence[Encoded], adapter: str | None = None) -> list[Array]:
        """Run as many calls as needed; return the graph's result for each text, in order."""
        use = _Calls()
        slot = self.adapters.lend(adapter, use).slot
        try:
            return self._in_calls(encoded, slot)
        finally:
            use.ended = True

    def _in_calls(self, encoded: Sequence[Encoded], slot: int) -> list[Array]:
        rows: dict[int, Array] = {}
        # Similar lengths share a call, for less padding. The sort is stable, so calls are deterministic.
        order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].ids))
        for start in range(0, len(order), self.sizes.batch_size):
            numbers = order[start : start + self.sizes.batch_size]
            batch = [encoded[number] for number in numbers]
            outputs = self.run_encoded(batch, slot)
            rows.update(zip(numbers, outputs, strict=True))
        return [rows[number] for number in range(len(encoded))]

    def read_as(
        self,
        texts: str | Sequence[Text],
        kind: str | None,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[Encoded]:
        """Tokenize texts of a kind, by its prompt if no other is given, and to its length. Thread-safe.

        Args:
            texts: One text or several; or token ids, unchanged.
            kind: Kind of the texts, "query" or "document"; None for neither.
            prompt: Text that precedes every text; None for that of `prompt_name`.
            prompt_name: Name of one of `settings.prompts`; None for that of the kind.
        """
        if kind and prompt is None and prompt_name is None:
            prompt_name = self.settings.prompt_of(kind)
        return self.read(
            [texts] if isinstance(texts, str) else texts,
            self.settings.length_of(kind),
            prompt=self.settings.prompt(prompt, prompt_name),
            kind=kind,
        )

    def read(
        self,
        texts: Sequence[Texts],
        max_length: int | None = None,
        side: Literal["left", "right"] | None = None,
        *,
        special_tokens: bool = True,
        prompt: str | None = None,
        rendered: bool = False,
        kind: str | None = None,
    ) -> list[Encoded]:
        """Tokenize texts. Thread-safe.

        Args:
            texts: Texts and pairs, truncated to `max_length` tokens; or token ids, unchanged.
            max_length: Number of tokens to which texts are truncated; None for `max_length` of the session.
            side: Side on which texts are truncated; None for the tokenizer's.
            special_tokens: Whether the tokenizer's special tokens are added.
            prompt: Text that precedes every text, and the first of a pair, but not a list of token ids; None for the
                session's default.
            rendered: Whether the texts are whole prompts, which take no other prompt and no template.
            kind: Kind of the texts, "query" or "document", for late interaction; None for neither.

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary; or there is a pair, and
                the task takes none.
        """
        most = min(max_length or self.max_length, self.sizes.seq_lens[-1])
        reader = replace(
            self._reader,
            max_length=most,
            side=side,
            special_tokens=special_tokens and self.settings.special_tokens,
        )
        if rendered:
            reader = replace(reader, prompt="", template=None)
        elif prompt is not None:
            reader = replace(reader, prompt=prompt)
        encoded = reader.read(texts)
        if most < min(max_length or most + 1, self.settings.max_length) and any(
            encoding.cut for encoding in encoded
        ):
            self._report_cut(most)
        return encoded

    def _report_cut(self, length: int) -> None:
        """Log once that the package, not the model, limits the length of texts."""
        if not self._reported_cut:
            self._reported_cut = True
            _LOG.warning(
                "%s truncates texts to %d tokens, the largest of its seq_lens; the model reads longer ones. Build the "
                "package with a larger --seq-lens.",
                self.folder.name,
                length,
            )


def _filled(rows: Sequence[_T], count: int) -> Iterator[_T]:
    yield from rows
    for _ in range(count - len(rows)):
        yield rows[0]
