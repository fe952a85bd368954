# SPDX-License-Identifier: Apache-2.0
"""Programs that sample on the device and return no logits: their inputs for each row, and their limits.

Names are QEfficient's; `qeff_zoo.targets.qaic.sampler` says what a program makes of them. What `Sampling` says is
meant alike wherever a token is drawn, but for the limits in `DeviceSampler.check`; with a seed the same program draws
the same tokens again, others than the host would.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Union

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.grammar import Grammar, Guide
from qeff_zoo.runtime.program import TOKENS, Array, Program
from qeff_zoo.runtime.sampling import Sampling, generator

_PROBS, _ACCEPTED = "probs", "last_accepted_output_tokens"
_NUMBERS, _MASKS = "random_numbers", "token_bitmasks"
#: What float16 holds beside 0 and 1: of neither is there a logarithm of a logarithm.
_LEAST, _MOST = np.float32(2.0**-14), np.float32(1 - 2.0**-11)
#: Inputs with one number to a row; the least temperature is one that float16 can divide by.
_OF_ROWS: Mapping[str, Callable[[Sampling], float]] = MappingProxyType(
    {
        "repetition_penalties": lambda one: one.repetition_penalty,
        "presence_penalties": lambda one: one.presence_penalty,
        "temperatures": lambda one: max(one.temperature, float(_LEAST)) if one.temperature else 0,
        "top_ps": lambda one: one.top_p,
        "min_ps": lambda one: one.min_p,
    }
)


@dataclass(frozen=True, eq=False)
class Sampled:
    """A token that a program drew.

    Args:
        token: Its id.
        probs: How likely each token was, (vocab,); None where the program does not tell.
    """

    token: int
    probs: Array | None = None


class Drawing:
    """How a program draws the tokens of one answer, one after the other.

    Args:
        sampling: Requested sampling.
        first: Position of the answer's first token.
        count: Random numbers for each token.
        guide: Says which tokens may come next; None where all may.

    Raises:
        GenerationError: No token may come.
    """

    def __init__(
        self, sampling: Sampling, first: int, count: int, guide: Guide | None = None
    ) -> None:
        self.sampling, self.first = sampling, first
        self._random, self._guide = generator(sampling), guide
        #: For the next token: of a call that draws none it may be told again.
        self.numbers = np.full(count, 0.5, np.float32)
        #: Of the next token which ones may be it, (vocab,); None where all may.
        self.allowed: Array | None = None
        self.renew()

    def renew(self) -> None:
        """Go on to the next token.

        Raises:
            GenerationError: None may come.
        """
        if self._random is not None:
            drawn = self._random.random(len(self.numbers), np.float32)
            self.numbers = drawn.clip(_LEAST, _MOST)
        if self._guide is not None:
            self.allowed = self._guide.allowed()


class DeviceSampler:
    """What a program that draws tokens is given, and what it returns.

    Args:
        program: With `TOKENS` among its outputs.
    """

    def __init__(self, program: Program) -> None:
        self._inputs = program.inputs
        #: Tokens that are drawn from at most.
        self.most = int(program.inputs[_NUMBERS].shape[1])
        self.vocab_size = next(int(one.axes[1]) for one in program.states if one.kind == "penalty")
        self._tells = _PROBS in program.outputs
        self._nobody = Drawing(Sampling(), np.iinfo(np.int64).max, self.most)

    @classmethod
    def of(cls, program: Program) -> Union["DeviceSampler", None]:
        """Return that of a program; None for one that returns logits."""
        return cls(program) if TOKENS in program.outputs else None

    def drawing(self, sampling: Sampling, first: int, guide: Guide | None) -> Drawing:
        """Begin to draw an answer, see `Drawing`."""
        return Drawing(sampling, first, self.most, guide)

    def check(self, sampling: Sampling, grammar: Grammar | None) -> None:
        """Refuse what only a host that has the logits can do.

        Raises:
            GenerationError: Something else is asked for; the message names all of it.
        """
        problems = []
        if sampling.frequency_penalty:
            problems.append(
                f"frequency_penalty {sampling.frequency_penalty!r}, which it cannot count; expected 0. Use "
                "presence_penalty"
            )
        if sampling.top_k > self.most < self.vocab_size:
            problems.append(
                f"top_k {sampling.top_k!r}; expected at most {self.most}, or 0 for as many. Choose fewer"
            )
        if sampling.logprobs is not None and not self._tells:
            problems.append(
                f"logprobs {sampling.logprobs!r}, which it does not return; expected none. Build it with --return-pdfs"
            )
        if grammar is not None and _MASKS not in self._inputs:
            problems.append(
                "a grammar, but takes no tokens to be allowed; expected none. Build it with --include-guided-decoding"
            )
        if problems:
            raise GenerationError(
                "\n".join(
                    f"The package draws tokens on its device and is asked for {one}, or without --include-sampler."
                    for one in problems
                )
            )

    def given(
        self, drawings: Sequence[Drawing | None], input_ids: Array, position_ids: Array
    ) -> dict[str, Array]:
        """Return the inputs of a call besides tokens and positions.

        Args:
            drawings: Sampling state of each row; None for greedy decoding.
            input_ids: (rows, columns).
            position_ids: Positions of these.
        """
        each = [one or self._nobody for one in drawings]
        first = np.array([one.first for one in each])[:, None]
        found: dict[str, Any] = {
            name: [[value(one.sampling)] for one in each] for name, value in _OF_ROWS.items()
        }
        found["top_ks"] = [[min(one.sampling.top_k or self.most, self.most)] for one in each]
        found[_NUMBERS] = [one.numbers for one in each]
        found[_ACCEPTED] = np.where(position_ids >= first, input_ids, -1)
        if _MASKS in self._inputs:
            every = np.ones(self.vocab_size, bool)
            found[_MASKS] = [every if one.allowed is None else one.allowed for one in each]
        return {name: np.asarray(value, self._inputs[name].dtype) for name, value in found.items()}

    def sampled(self, outputs: Mapping[str, Array], place: int) -> Sampled:
        """Read what a call drew for one of its rows.

        Raises:
            GenerationError: The result is not a token.
        """
        token = int(outputs[TOKENS][place].reshape(-1)[0])
        if not 0 <= token < self.vocab_size:
            raise GenerationError(
                f"The package drew token {token!r}; expected 0 to {self.vocab_size - 1:,}. It computes nonsense: build "
                "it again."
            )
        probs = outputs[_PROBS][place].reshape(-1) if self._tells else None
        return Sampled(token, probs)
