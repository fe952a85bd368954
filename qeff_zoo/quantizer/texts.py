# SPDX-License-Identifier: Apache-2.0
"""The texts that a model is calibrated on, as its inputs."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.disk.text_files import lines_of
from qeff_zoo.errors import GenerationError
from qeff_zoo.export import companions
from qeff_zoo.validation.trial.sample_texts import draw

_LENGTH = 512  # tokens of a text at most
_OURS = (256, 256, 256, 256)  # tokens of the texts that are taken where none was given
_FEWEST = 128


@dataclass(frozen=True)
class Texts:
    """What a model is calibrated on.

    Args:
        sequences: Token ids.
        encoder: Whether the model reads whole texts, and types of tokens.
    """

    sequences: Sequence[Sequence[int]]
    encoder: bool

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return sum(map(len, self.sequences))

    @property
    def digest(self) -> str:
        """Identify the tokens: "sha256:" and 64 hex digits."""
        text = json.dumps([list(sequence) for sequence in self.sequences], separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def inputs(self) -> list[dict[str, Tensor]]:
        """Return what the model is called with for each text."""
        calls = []
        for sequence in self.sequences:
            ids = torch.tensor([sequence])
            calls.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        return calls


def read(checkpoint: Checkpoint, text: str | None, tokens: int, *, encoder: bool) -> Texts:
    """Cut a text into what a model is calibrated on.

    Args:
        checkpoint: Whose tokenizer is used.
        text: Text, for an encoder line by line; None for a few built-in texts, or random tokens without a tokenizer.
        tokens: Maximum number of tokens.
        encoder: Whether the model reads whole texts.

    Raises:
        GenerationError: The text is too short, or there is no tokenizer to read it.
    """
    tokenizer = companions.tokenizer_of(checkpoint)
    vocab_size = int(checkpoint.config.get("vocab_size", 0))
    longest = min(_LENGTH, positions_of(checkpoint.config) or _LENGTH)
    if text is None:
        lengths = [min(length, longest) for length in _OURS]
        return Texts(draw(lengths, tokenizer, vocab_size, whole=encoder), encoder)
    if tokenizer is None:
        raise GenerationError(
            f"{checkpoint.name!r} has no tokenizer.json and cannot read a text. Expected one beside its weights. Leave "
            "out --calibration, and random tokens are taken."
        )
    if encoder:
        lines = lines_of(text)
        sequences = tokenizer.encode_batch(lines, longest) if lines else []
    else:
        # Every piece begins as a text does: the first token has a part of its own in many models.
        begin = tokenizer.encode("")
        ids = tokenizer.encode(text, special_tokens=False)
        step = longest - len(begin)
        sequences = [[*begin, *ids[at : at + step]] for at in range(0, len(ids), step)]
    kept: list[list[int]] = []
    for sequence in sequences:
        if len(sequence) > 1 and sum(map(len, kept)) < tokens:
            kept.append(sequence)
    if sum(map(len, kept)) < _FEWEST:
        raise GenerationError(
            f"A text of {len(text):,} characters and {sum(map(len, kept))} tokens is too short to calibrate on. "
            f"Expected at least {_FEWEST} tokens, better ten thousand. Give more with --calibration, or raise "
            "--calibration-tokens."
        )
    return Texts(kept, encoder)
