# SPDX-License-Identifier: Apache-2.0
"""An embedding package as a session: texts in, one vector per text out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoder import Array
from qeff_zoo.runtime.onnx_session import open_graph
from qeff_zoo.runtime.sizes import EncoderSizes, Specializations
from qeff_zoo.runtime.tokenizer import Tokenizer, read_json

#: Text, or token ids.
Text: TypeAlias = str | Sequence[int]


class EmbeddingSession:
    """An opened package of the task `feature-extraction`.

    Args:
        folder: The package.
        specializations: As in its manifest.
        threads: That compute one operator; None for one per physical core.
        prepack: See `qeff_zoo.runtime.onnx_session.open_graph`.

    Raises:
        GenerationError: Another task's package.

    Example:
        >>> session = qeff_zoo.load("packages/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> session.similarity(session.embed(["a cat", "a kitten"]))  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: Path,
        specializations: Specializations,
        *,
        threads: int | None = None,
        prepack: bool = False,
    ) -> None:
        self.folder = folder
        self._session = open_graph(
            folder,
            task="feature-extraction",
            inputs={"input_ids", "attention_mask"},
            outputs={"output"},
            threads=threads,
            prepack=prepack,
        )
        self.sizes = EncoderSizes.read(specializations)
        self.tokenizer = Tokenizer.find(folder)
        settings = read_json(folder / "sentence_bert_config.json")
        self._lowercase = bool(settings.get("do_lower_case"))
        #: Longer texts are cut to so many tokens.
        self.max_length = min(_max_seq_length(folder), self.sizes.seq_lens[-1])
        self.vocab_size = int(read_json(folder / "config.json").get("vocab_size", 0))

    def embed(self, texts: str | Sequence[Text]) -> Array:
        """Compute one embedding per text.

        Args:
            texts: Texts, cut to `max_length` tokens; or token ids as they are.

        Returns:
            float32, (texts, hidden).

        Raises:
            GenerationError: A list of token ids is empty, too long, or not of this vocabulary.
        """
        tokens = self.encode([texts] if isinstance(texts, str) else texts)
        rows: dict[int, Array] = {}
        # Like lengths together: less padding. The sort is stable, so calls do not depend on luck.
        order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
        for start in range(0, len(order), self.sizes.batch_size):
            numbers = order[start : start + self.sizes.batch_size]
            rows.update(zip(numbers, self.run([tokens[number] for number in numbers]), strict=True))
        return np.stack([rows[number] for number in range(len(tokens))])

    def encode(self, texts: Sequence[Text]) -> list[list[int]]:
        """Turn texts into token ids, as `embed` does."""
        if not texts:
            raise GenerationError(
                "There is nothing to embed in []; expected at least one text. Give one."
            )
        words = [text for text in texts if isinstance(text, str)]
        if words and self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json and cannot take the text "
                f"{words[0][:40]!r}; expected token ids. Give a list of them."
            )
        read = iter(self._tokenize(words))
        encoded = [next(read) if isinstance(text, str) else list(text) for text in texts]
        for tokens in encoded:
            self._check(tokens)
        return encoded

    def run(self, rows: Sequence[Sequence[int]], seq_len: int | None = None) -> Array:
        """Run one call.

        Args:
            rows: Token ids of at most `batch_size` texts.
            seq_len: One of the package's; None for the shortest that all rows fit into.

        Returns:
            float32, (rows, hidden).
        """
        longest = max(map(len, rows))
        seq_len = seq_len or next(size for size in self.sizes.seq_lens if size >= longest)
        input_ids = np.zeros((self.sizes.batch_size, seq_len), np.int64)
        attention_mask = np.zeros_like(input_ids)
        # Rows to spare repeat the first: a row without any token has no embedding.
        for row, tokens in enumerate(_filled(rows, self.sizes.batch_size)):
            input_ids[row, : len(tokens)] = tokens
            attention_mask[row, : len(tokens)] = 1
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask}
        (output,) = self._session.run(["output"], feeds)
        embeddings: Array = np.asarray(output)[: len(rows)].astype(np.float32)
        return embeddings

    def similarity(self, embeddings: Array, others: Array | None = None) -> Array:
        """Compute the cosine of every embedding with every other.

        Args:
            embeddings: (n, hidden).
            others: (m, hidden); None for `embeddings` themselves.

        Returns:
            float32, (n, m).
        """
        left = _normalized(embeddings)
        right = left if others is None else _normalized(others)
        cosines: Array = left @ right.T
        return cosines

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        if self.tokenizer is None or not texts:
            return []
        plain = [text.lower() if self._lowercase else text for text in texts]
        return self.tokenizer.encode_batch(plain, self.max_length)

    def _check(self, tokens: Sequence[int]) -> None:
        longest = self.sizes.seq_lens[-1]
        if not 0 < len(tokens) <= longest:
            raise GenerationError(
                f"A text has {len(tokens):,} tokens; expected 1 to {longest:,}, the package's "
                "longest sequence. Change it, or build the package with a longer one."
            )
        foreign = next((token for token in tokens if not 0 <= token < self.vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {self.vocab_size - 1:,}."
                " Encode the text with the package's own tokenizer."
            )


def _normalized(embeddings: Array) -> Array:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    scaled: Array = embeddings / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def _filled(rows: Sequence[Sequence[int]], count: int) -> Iterator[Sequence[int]]:
    yield from rows
    for _ in range(count - len(rows)):
        yield rows[0]


def _max_seq_length(folder: Path) -> int:
    """Return where sentence-transformers cuts a text: what it was told, or all that the model takes."""
    told = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    if told:
        return int(told)
    bounds = [
        read_json(folder / "tokenizer_config.json").get("model_max_length"),
        read_json(folder / "config.json").get("max_position_embeddings"),
    ]
    return min((int(bound) for bound in bounds if bound), default=1 << 30)
