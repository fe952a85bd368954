# SPDX-License-Identifier: Apache-2.0
"""Drafts of which tokens are rejected, in a tiny model: what they leave behind in the states of its graph."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import parity

from qeff_zoo.recipe import Shape
from qeff_zoo.runtime.caches.prefix_cache import PrefixCache
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.sampling import Sampler, Sampling
from qeff_zoo.runtime.engine.answers import Answer, Request
from qeff_zoo.runtime.engine.scheduling import Scheduler
from qeff_zoo.runtime.engine.speculation import Speculation
from qeff_zoo.targets.ort.session import OrtProgram
from qeff_zoo.tasks.text_generation import task

SEVERAL: parity.Variant = (("num_logits_to_keep", True),)
MOST = 5
#: Computes its later layers only for tokens whose logits are asked for.
NARROWED = "llama_swiftkv-base"
_PROMPT = 6


def specializations(rows: int, **sizes: Any) -> list[dict[str, Any]]:
    """Return those of a package that checks 3 and `MOST` drafted tokens."""
    shape = Shape(
        prefill_seq_len=8,
        ctx_len=parity.CTX_LEN,
        batch_size=rows,
        num_speculative_tokens=(3, MOST),
    )
    return task.TASK.specializations(shape)


@cache
def program(name: str, rows: int = 2) -> OrtProgram:
    """Open the lowered graph of a tiny model; two decoders of it are never used at a time."""
    session = parity.subject(name).lowered("fp32", SEVERAL, 1)
    return OrtProgram(session, session.states, specializations(rows))


@dataclass
class Oracle:
    """Drafts what an answer will be, but for some tokens.

    Args:
        answers: What requests get, by prompt.
        wrong: Places in an answer at which the draft is another token.
        most: Tokens of a draft.
        told: How many were accepted, each time.
        asked: Rows that would share a call, each time.
    """

    answers: dict[tuple[int, ...], list[int]]
    wrong: frozenset[int] = frozenset()
    most: int = MOST
    told: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int]:
        """Guess what follows."""
        assert 1 <= most <= MOST
        prompt = next(
            (answer for answer in self.answers if (*tokens,)[: len(answer)] == answer), None
        )
        self.asked.append(rows)
        if prompt is None:
            return []
        at = len(tokens) - len(prompt)
        drafted = self.answers[prompt][at : at + min(most, self.most)]
        return [
            (token - 1 if token else 1) if at + place in self.wrong else token
            for place, token in enumerate(drafted)
        ]

    def accepted(self, count: int) -> None:
        """Note how many were right."""
        self.told.append(count)

    @property
    def speculation(self) -> Speculation:
        """Have it draft for every request."""
        return Speculation(most=MOST, drafter=lambda _: self)


class _Given(Sampler):
    """Takes the tokens of a text, whatever the logits are, and keeps those."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(Sampling(), ())
        self._text, self.seen = iter(text), list[parity.Array]()

    def next(self, logits: parity.Array) -> int:
        self.seen.append(logits.copy())
        return next(self._text)

    def logprobs(self, logits: parity.Array, token: int) -> None:
        """Nothing was asked for."""


def oracles(prompt: tuple[int, ...], text: list[int]) -> Iterator[Oracle]:
    """Yield drafters whose tokens are rejected at every place of a text, in drafts of all lengths."""
    for most in (1, 2, MOST):
        for wrong in (range(len(text)), *(range(at, len(text), 3) for at in range(3))):
            yield Oracle({prompt: text}, frozenset(wrong), most)


def trace_of_rejected(name: str) -> tuple[float, float]:
    """Compare what a tiny model answers at every place of a text, beyond what a window keeps, with drafts and without.

    Returns:
        The largest difference of logits, and how far Hugging Face's own differ when they are rounded otherwise.
    """
    decoder = Decoder(program(name, 1))
    ids, _, noise = parity.expected_of(parity.subject(name))
    prompt, text = (*ids[0, :_PROMPT].tolist(),), ids[0, _PROMPT:].tolist()

    def logits(speculation: Speculation | None) -> parity.Array:
        scheduler = Scheduler(decoder, PrefixCache(decoder, 0), speculation)
        answer = Answer(Request(prompt=prompt, limit=len(text)), None)
        answer._sampler = settings = _Given(text)
        scheduler.submit(answer)
        while scheduler.step():
            pass
        assert answer.token_ids == text
        assert bool(answer.drafted_tokens) == bool(speculation)
        return np.array(settings.seen)

    right = logits(None)
    return max(
        float(np.abs(logits(oracle.speculation) - right).max()) for oracle in oracles(prompt, text)
    ), noise


def verdict(away: float, noise: float) -> dict[str, Any]:
    """Say what `trace_of_rejected` found."""
    most = parity.TOLERANCE["fp32"] * noise
    found = "agrees" if away <= most else "differs"
    return {"verdict": found, "max_error": float(f"{away:.3g}"), "<=": float(f"{most:.3g}")}
