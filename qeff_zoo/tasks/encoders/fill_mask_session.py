# SPDX-License-Identifier: Apache-2.0
"""Session of a masked language model: texts with masks in, the most likely tokens for each mask out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qeff_zoo.contract import FILL_MASK
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.activations import softmax
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.text.tokenizer import Encoded, Tokenizer
from qeff_zoo.tasks.encoders.session import EncoderSession

#: Number of tokens that are returned for each mask, as in transformers' pipeline.
_TOP_K = 5


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Token for a mask.

    Args:
        token: Token id.
        text: Text of the token.
        score: Probability of the token.
        sequence: The whole text with the token in place of the mask; with special tokens if it has several masks.
    """

    token: int
    text: str
    score: float
    sequence: str


class FillMaskSession(EncoderSession):
    """An opened package of the task `fill-mask`; see `EncoderSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/bert-base-uncased")  # doctest: +SKIP
        >>> [
        ...     fill.text for fill in session.fill("The capital of France is [MASK].")[0][0]
        ... ]  # doctest: +SKIP
        ['paris', 'lille', 'lyon', 'marseille', 'tours']
    """

    task = FILL_MASK
    output = "logits"

    def __init__(self, folder: Path, program: Program) -> None:
        super().__init__(folder, program)
        words = self.tokenizer
        self._mask = words and words.token_named(None, ("mask_token",))
        self._padding = words and words.token_named(None, ("pad_token",))

    @property
    def words(self) -> Tokenizer:
        """Tokenizer with a mask token.

        Raises:
            GenerationError: The package has none.
        """
        if self.tokenizer is None or self._mask is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer with a `mask_token`; expected tokenizer.json and "
                "tokenizer_config.json of a masked language model. Build it from a checkpoint that has both."
            )
        return self.tokenizer

    @property
    def mask(self) -> str:
        """Text of a mask."""
        return self.words.name(self._mask or 0)

    def fill(
        self,
        texts: str | Sequence[str],
        top_k: int | None = None,
        *,
        targets: str | Sequence[str] = (),
        adapter: str | None = None,
    ) -> list[list[list[Fill]]]:
        """Return the most likely tokens for each mask of each text, the best first, as transformers' pipeline.

        Masks of one text are filled independently of one another.

        Args:
            texts: Texts that contain `mask`, truncated to `max_length` tokens.
            top_k: Number of tokens for each mask; None for 5.
            targets: List of the texts of tokens to choose from, a longer text by its first token; empty for the whole
                vocabulary.
            adapter: Name of one of `adapters`; None for the base model.

        Raises:
            GenerationError: The package has no mask token, a text has no mask, `top_k` is out of range, or no token
                begins a target.
        """
        chosen = self.targets_of([targets] if isinstance(targets, str) else targets)
        top_k = self.count_of(top_k)
        encoded = self.read([texts] if isinstance(texts, str) else texts)
        self.require_masks(encoded)
        outputs = self._answer(encoded, adapter)
        return [
            self.fills_of(one, logits, top_k, chosen)
            for one, logits in zip(encoded, outputs, strict=True)
        ]

    def run_encoded(self, texts: Sequence[Encoded], slot: int = 0) -> list[Array]:
        """Run one call for at most `batch_size` texts; keep the logits of masks, (masks, vocab_size) for each text.

        Those of all tokens take a thousand times more memory than the texts.
        """
        outputs = super().run_encoded(texts, slot)
        return [output[self.masks_of(text)] for text, output in zip(texts, outputs, strict=True)]

    def masks_of(self, encoded: Encoded) -> list[int]:
        """Return the positions of the masks among the tokens of a text."""
        return [place for place, token in enumerate(encoded.ids) if token == self._mask]

    def require_masks(self, texts: Sequence[Encoded]) -> None:
        """Check that each text has a mask.

        Raises:
            GenerationError: One has none, or the package has no mask token.
        """
        mask = self.mask
        for number, text in enumerate(texts):
            if not self.masks_of(text):
                where = f" within its first {len(text.ids):,} tokens" if text.cut else ""
                raise GenerationError(
                    f"Text {number + 1} has no mask{where}; expected {mask!r} once at least. Write it where a "
                    "token is missing."
                )

    def count_of(self, top_k: int | None) -> int:
        """Return the number of tokens for each mask; for None that of transformers' pipeline.

        Raises:
            GenerationError: It is out of range.
        """
        if top_k is None:
            return min(_TOP_K, self.width)
        if not 1 <= top_k <= self.width:
            raise GenerationError(
                f"`top_k` is {top_k:,}; expected 1 to {self.width:,}, the number of the model's tokens. Change it."
            )
        return top_k

    def targets_of(self, texts: Sequence[str]) -> Array | None:
        """Return the ascending token ids of texts, a longer text by its first token; None for no texts.

        Raises:
            GenerationError: A text has no token.
        """
        ids = set()
        for text in texts:
            token = self.words.token_id(text)
            begun = [token] if token is not None else self.words.encode(text, special_tokens=False)
            if not begun or begun[0] >= self.width:
                raise GenerationError(
                    f"Target {text!r} has no token in the model's vocabulary; expected a word of it. Leave it out."
                )
            ids.add(begun[0])
        return np.array(sorted(ids)) if ids else None

    def fills_of(
        self, encoded: Encoded, logits: Array, top_k: int, targets: Array | None = None
    ) -> list[list[Fill]]:
        """Return the tokens for each mask by the output of the program for a text.

        Args:
            encoded: Tokens of the text.
            logits: Logits of its masks, see `run_encoded`.
            top_k: Number of tokens for each mask.
            targets: Token ids to choose from, see `targets_of`; None for all.
        """
        masks = self.masks_of(encoded)
        chosen = np.arange(self.width) if targets is None else targets
        fills = []
        for position, row in zip(masks, logits, strict=True):
            shares = softmax(row.astype(np.float64))[chosen]
            best = np.argsort(-shares, kind="stable")[:top_k]
            fills.append(
                [
                    self._fill(
                        encoded.ids, position, int(chosen[one]), float(shares[one]), len(masks)
                    )
                    for one in best
                ]
            )
        return fills

    def _fill(
        self, ids: Sequence[int], position: int, token: int, score: float, masks: int
    ) -> Fill:
        filled = [*ids[:position], token, *ids[position + 1 :]]
        filled = [one for one in filled if one != self._padding]
        # Without special tokens the other masks would be missing.
        decode = self.words.decode_all if masks > 1 else self.words.decode
        return Fill(
            token=token,
            text=self.words.decode_all([token]),
            score=score,
            sequence=decode(filled),
        )
