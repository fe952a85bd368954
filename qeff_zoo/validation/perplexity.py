# SPDX-License-Identifier: Apache-2.0
"""Perplexity of one text: by Hugging Face's model, by a package, and by the portable graph.

All read the same windows of the same tokens and score the same targets, so that only the model differs:

    window 1  |c t t t t t t t|              c  context: read, not scored
    window 2        |c c c c t t t t|        t  target: scored once, in the first window that has it
    window 3              |c c c c t t t t|

The context of a window is read in chunks. So are the targets where a call returns logits after each of its tokens, as
those of packages for speculation do. Else a call returns them after a row's newest token alone, and each target is a
decode step: as slow as generating the text would be, with as many windows at a time as there are rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from qeff_zoo import targets
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.validation.reference.answers import Reference
from qeff_zoo.validation.trial.phases import Progress

_REFERENCE = "qeff_zoo.validation.reference.perplexity"


@dataclass(frozen=True)
class Window:
    """A stretch of the text.

    Args:
        start: Number of its first token.
        first: Index of its first target, after `start`.
        stop: After its last token, which is a target.
    """

    start: int
    first: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What is to be scored.

    Args:
        tokens: The text, special tokens of the tokenizer included.
        window: Tokens that a window has at most.
        stride: Tokens from one window to the next. As long as the window: no context is read twice, and the first
            token of each window is not scored.
        batch_size: Windows that the reference runs at a time; a package runs as many as it has rows.
        first: Number of the first token that is scored. Those before it are context.
    """

    tokens: Sequence[int]
    window: int
    stride: int
    batch_size: int = 1
    first: int = 1

    @property
    def windows(self) -> list[Window]:
        """The windows, which score every token that has one before it."""
        collected: list[Window] = []
        for start in range(0, len(self.tokens), self.stride):
            stop = min(start + self.window, len(self.tokens))
            first = max(start + 1, self.first, collected[-1].stop if collected else 0)
            if first < stop:
                collected.append(Window(start, first, stop))
            if stop == len(self.tokens):
                break
        return collected

    @property
    def targets(self) -> list[int]:
        """Numbers of the tokens that are scored, ascending."""
        return [number for window in self.windows for number in range(window.first, window.stop)]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well a model predicts a text.

    Args:
        nats_per_token: Mean of the negative natural logarithms of the targets' probabilities.
        targets: Their number.
    """

    nats_per_token: float
    targets: int

    @property
    def perplexity(self) -> float:
        """The exponential of the mean."""
        return math.exp(self.nats_per_token)


@dataclass(frozen=True, kw_only=True)
class PerplexityComparison:
    """How well models predict one text.

    Args:
        name: Name of the checkpoint, for people.
        scoring: Scored text.
        scores: Scores by model: "hugging-face", the packages, and "graph" if it was requested.
    """

    name: str
    scoring: Scoring
    scores: Mapping[str, Score]

    def ratio(self, model: str) -> float:
        """Return a model's perplexity over Hugging Face's."""
        return self.scores[model].perplexity / self.scores["hugging-face"].perplexity

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for a program."""
        return {
            "name": self.name,
            "tokens": len(self.scoring.tokens),
            "window": self.scoring.window,
            "stride": self.scoring.stride,
            "scores": {
                model: {
                    "targets": score.targets,
                    "nats_per_token": score.nats_per_token,
                    "perplexity": score.perplexity,
                    "ratio": self.ratio(model),
                }
                for model, score in self.scores.items()
            },
        }

    def __str__(self) -> str:
        scoring = self.scoring
        rows = [
            [model, f"{value.targets:,}", f"{value.nats_per_token:.5f}", f"{value.perplexity:.4f}",
             f"{self.ratio(model):.5f}"]
            for model, value in self.scores.items()
        ]  # fmt: skip
        headers = ["model", "scored", "nats per token", "perplexity", "ratio"]
        return (
            f"{self.name}: {len(scoring.tokens):,} tokens in windows of {scoring.window:,} every {scoring.stride:,}\n\n"
            + tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
        )


def prepare(
    package: Package,
    text: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int = 1,
) -> Scoring:
    """Cut a text for a package.

    Args:
        package: Package for text generation, on the CPU or on cards; its tokenizer is used.
        text: Any.
        window: None for the whole context of the package.
        stride: None for half the window.
        batch_size: Batch size of the reference.

    Raises:
        GenerationError: The package has no perplexity, the text none, or the sizes do not fit.
    """
    scored = ("ort", *targets.on_cards())
    if package.task != TEXT_GENERATION or package.target not in scored:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r} and target {package.target!r}; expected "
            f"{TEXT_GENERATION!r} and {' or '.join(map(repr, scored))}. Name such a package."
        )
    ctx_len = DecoderSizes.read(package.programs[0].specializations).ctx_len
    window = ctx_len if window is None else window
    stride = max(1, window // 2) if stride is None else stride
    for name, value, least, most in (
        ("window", window, 2, ctx_len),
        ("stride", stride, 1, window),
        ("batch-size", batch_size, 1, math.inf),
    ):
        if not least <= value <= most:
            at_most = "" if most == math.inf else f" and at most {most}"
            raise GenerationError(
                f"Cannot score with a {name} of {value}; expected at least {least}{at_most}. Change --{name}."
            )
    tokenizer = Tokenizer.find(package.path)
    if tokenizer is None:
        raise GenerationError(
            f"Package {str(package.path)!r} has no tokenizer.json and cannot read a text. Expected one from its "
            "checkpoint. Add it there, and build again."
        )
    tokens = tokenizer.encode(text)
    if not text or len(tokens) < 2:
        raise GenerationError(
            f"A text of {len(text)} characters and {len(tokens)} tokens has no perplexity; expected at least two "
            "tokens, of which the first predicts the second. Give more text."
        )
    return Scoring(tokens=tokens, window=window, stride=stride, batch_size=batch_size)


def score_reference(
    scoring: Scoring,
    checkpoint: Checkpoint,
    rope_factors: str | None,
    step: Progress,
    logits: Path | None = None,
) -> Score:
    """Score with Hugging Face's unpatched model in float32, in a process of its own.

    Args:
        scoring: Text to score.
        checkpoint: With its weights.
        rope_factors: The package's longrope factors; None for other models.
        step: Callback for every call.
        logits: File for the logits that predict each target, `.npy` of (targets, vocabulary); None for no file.
    """
    request = {
        **checkpoint.located,
        "rope_factors": rope_factors,
        "tokens": list(scoring.tokens),
        "windows": [(window.start, window.first, window.stop) for window in scoring.windows],
        "batch_size": scoring.batch_size,
        "logits": None if logits is None else str(logits.absolute()),
    }
    with Reference(None, _REFERENCE) as reference:
        losses = reference.run(request, step).arrays["losses"]
    return Score(nats_per_token=float(losses.mean()), targets=len(losses))


def score(scoring: Scoring, decoder: Decoder, step: Progress) -> Score:
    """Score with a graph: a package's, or a portable one with its weights.

    Args:
        scoring: Text to score.
        decoder: Runs the graph.
        step: Callback for every call.
    """
    losses = [
        loss_of(logits, scoring.tokens[target])
        for target, logits in predictions(scoring, decoder, step)
    ]
    return Score(nats_per_token=math.fsum(losses) / len(losses), targets=len(losses))


def predictions(scoring: Scoring, decoder: Decoder, step: Progress) -> Iterator[tuple[int, Array]]:
    """Yield each target's number and the logits by which a graph predicts it, in the order of the calls.

    Args:
        scoring: Windows and their tokens.
        decoder: Runs the graph.
        step: Receives the number of finished calls.
    """
    decoder.require_logits("the likelihood of a text")
    windows, rows = scoring.windows, decoder.sizes.rows
    read = _read_chunks if decoder.verifies else _read_steps
    for at in range(0, len(windows), rows):
        yield from read(decoder, scoring.tokens, windows[at : at + rows], step)


def _read_steps(
    decoder: Decoder, tokens: Sequence[int], group: Sequence[Window], step: Progress
) -> Iterator[tuple[int, Array]]:
    """Yield the targets of as many windows as there are rows, or fewer, from one decode step each."""
    logits = _read_context(decoder, tokens, group, [member.first for member in group], step)
    for offset in range(max(member.stop - member.first for member in group)):
        scored = {row: one for row, one in enumerate(group) if one.first + offset < one.stop}
        for row, one in scored.items():
            yield one.first + offset, logits[row]
        pieces = {
            row: Piece(tokens[value.first + offset :][:1], value.first + offset - value.start)
            for row, value in scored.items()
            if value.first + offset + 1 < value.stop
        }
        if pieces:
            logits = decoder.decode(pieces)
            step(1)


def _read_chunks(
    decoder: Decoder, tokens: Sequence[int], group: Sequence[Window], step: Progress
) -> Iterator[tuple[int, Array]]:
    """Yield the targets of windows that are read in chunks."""
    _read_context(decoder, tokens, group, [member.first - 1 for member in group], step)
    length = decoder.sizes.prefill_seq_len
    for row, one in enumerate(group):
        for start in range(one.first - 1, one.stop - 1, length):
            stop = min(start + length, one.stop - 1)
            logits = decoder.verify({row: Piece(tokens[start:stop], start - one.start)})[row]
            yield from zip(range(start + 1, stop + 1), logits, strict=True)
            step(1)


def _read_context(
    decoder: Decoder,
    tokens: Sequence[int],
    group: Sequence[Window],
    ends: Sequence[int],
    step: Progress,
) -> dict[int, Array]:
    """Run the tokens before some positions of windows; return each row's logits after it."""
    length = decoder.sizes.prefill_seq_len
    logits: dict[int, Array] = {}
    for done in range(
        0, max(end - one.start for one, end in zip(group, ends, strict=True)), length
    ):
        pieces = {
            row: Piece(tokens[one.start + done : min(one.start + done + length, end)], done)
            for row, (one, end) in enumerate(zip(group, ends, strict=True))
            if one.start + done < end
        }
        logits.update(decoder.prefill(pieces))
        step(1)
    return logits


def loss_of(logits: Array, target: int) -> float:
    """Return the negative natural logarithm of a token's probability."""
    values = logits.astype(np.float64)
    most = values.max()
    return float(most + np.log(np.exp(values - most).sum()) - values[target])
