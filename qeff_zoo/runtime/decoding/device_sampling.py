# SPDX-License-Identifier: Apache-2.0
"""Programs that sample on the device and return no logits: their inputs for each batch slot, and their limits.

Names are QEfficient's; `qeff_zoo.targets.qaic.sampler` implements them. `Sampling` has the same meaning for host and
device, except for the limits in `DeviceSampler.check`; with a seed the same program samples the same tokens again,
but other tokens than the host.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Union

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import GenerationError, NoTokenError
from qeff_zoo.runtime.decoding.sampling import Sampling, generator
from qeff_zoo.runtime.program import TOKENS, Array, Program
from qeff_zoo.runtime.text.grammar import Grammar, Guide
from qeff_zoo.runtime.text.thinking_budget import ThinkingBudget

_WITHOUT = GenerationSettings()
_PROBS, _ACCEPTED = "probs", "last_accepted_output_tokens"
_NUMBERS, _MASKS = "random_numbers", "token_bitmasks"
#: Limits of float16 between 0 and 1, for which the logarithm of a logarithm exists.
_LEAST, _MOST = np.float32(2.0**-14), np.float32(1 - 2.0**-11)
#: Inputs with one number per row; the minimum temperature is one that float16 can divide by.
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
    """Token that a program sampled.

    Args:
        token: Token id.
        probs: Probability of each token, (vocab,); None if the program does not return them.
    """

    token: int
    probs: Array | None = None


class Drawing:
    """Device sampling state of one generation, token by token.

    Args:
        sampling: Sampling parameters.
        first: Position of the first generated token.
        count: Number of random numbers per token.
        guide: Guide with the allowed next tokens; None if all are allowed.
        mask: Mask of the tokens that any position may have, (vocab,); None for all.

    Raises:
        GenerationError: If no token is allowed.
    """

    def __init__(
        self,
        sampling: Sampling,
        first: int,
        count: int,
        guide: Guide | None = None,
        mask: Array | None = None,
    ) -> None:
        self.sampling, self.first, self._mask = sampling, first, mask
        self._random, self._guide = generator(sampling), guide
        #: Random numbers for the next token, which calls that sample nothing may receive repeatedly.
        self.numbers = np.full(count, 0.5, np.float32)
        #: Mask of allowed next tokens, (vocab,); None if all are allowed.
        self.allowed: Array | None = mask
        self.renew()

    def renew(self) -> None:
        """Advance to the next token.

        Raises:
            GenerationError: If no token is allowed.
        """
        if self._random is not None:
            drawn = self._random.random(len(self.numbers), np.float32)
            self.numbers = drawn.clip(_LEAST, _MOST)
        if self._guide is not None:
            allowed = self._guide.allowed()
            self.allowed = allowed if self._mask is None else allowed & self._mask
            if not self.allowed.any():
                raise NoTokenError(
                    "The grammar and allowed_token_ids exclude every next token; expected at least one. Change one."
                )


class DeviceSampler:
    """Inputs and outputs of a program that samples on the device.

    Args:
        program: A program with `TOKENS` among its outputs.
    """

    def __init__(self, program: Program) -> None:
        self._inputs = program.inputs
        #: Maximum number of tokens to sample from.
        self.most = int(program.inputs[_NUMBERS].shape[1])
        self.vocab_size = next(
            int(state.axes[1]) for state in program.states if state.kind == "penalty"
        )
        self._tells = _PROBS in program.outputs
        self._unused_slot = Drawing(Sampling(), np.iinfo(np.int64).max, self.most)

    @classmethod
    def of(cls, program: Program) -> Union["DeviceSampler", None]:
        """Return the sampler of a program; None for a program that returns logits."""
        return cls(program) if TOKENS in program.outputs else None

    def drawing(self, sampling: Sampling, first: int, guide: Guide | None) -> Drawing:
        """Return the sampling state of a new generation, see `Drawing`."""
        mask = None
        if sampling.allowed_token_ids is not None:
            mask = np.zeros(self.vocab_size, bool)
            mask[[*sampling.allowed_token_ids]] = True
        return Drawing(sampling, first, self.most, guide, mask)

    def check(
        self,
        sampling: Sampling,
        grammar: Grammar | ThinkingBudget | None,
        settings: GenerationSettings = _WITHOUT,
    ) -> None:
        """Reject options, and settings of generation_config.json, that require logits on the host.

        Raises:
            GenerationError: If an option is not supported; the message lists all of them.
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
        problems += [
            f"{name}, which requires logits on the host; expected none. Leave it out"
            for name in (
                *("logit_bias", "bad_words", "min_tokens", "prompt_logprobs"),
                *("xtc", "mirostat", "dry"),
            )
            if getattr(sampling, name) not in (None, 0, (), {})
        ]
        problems += [
            f"{name} by generation_config.json, which requires logits on the host; expected none. Ignore that file "
            "(--generation-config none)"
            for name in settings.on_host(samples=sampling.temperature > 0)
        ]
        if sampling.logprobs is not None and not self._tells:
            problems.append(
                f"logprobs {sampling.logprobs!r}, which it does not return; expected none. Build it with --return-pdfs"
            )
        limits = {"a grammar": grammar, "allowed_token_ids": sampling.allowed_token_ids}
        problems += [
            f"{name}, but takes no tokens to be allowed; expected none. Build it with --include-guided-decoding"
            for name, value in limits.items()
            if value is not None and _MASKS not in self._inputs
        ]
        if problems:
            raise GenerationError(
                "\n".join(
                    f"The package draws tokens on its device and is asked for {problem}, or without --include-sampler."
                    for problem in problems
                )
            )

    def given(
        self, drawings: Sequence[Drawing | None], input_ids: Array, position_ids: Array
    ) -> dict[str, Array]:
        """Return the inputs of a call besides tokens and positions.

        Args:
            drawings: Sampling state of each row; None for greedy decoding.
            input_ids: Token ids (rows, columns).
            position_ids: Positions of the tokens.
        """
        each = [drawing or self._unused_slot for drawing in drawings]
        first = np.array([one.first for one in each])[:, None]
        inputs: dict[str, Any] = {
            name: [[value(one.sampling)] for one in each] for name, value in _OF_ROWS.items()
        }
        inputs["top_ks"] = [[min(one.sampling.top_k or self.most, self.most)] for one in each]
        inputs[_NUMBERS] = [one.numbers for one in each]
        inputs[_ACCEPTED] = np.where(position_ids >= first, input_ids, -1)
        if _MASKS in self._inputs:
            every = np.ones(self.vocab_size, bool)
            inputs[_MASKS] = [every if one.allowed is None else one.allowed for one in each]
        return {name: np.asarray(value, self._inputs[name].dtype) for name, value in inputs.items()}

    def sampled(self, outputs: Mapping[str, Array], row: int) -> Sampled:
        """Return the token that a call sampled for one of its rows.

        Raises:
            GenerationError: If the result is not a token.
        """
        token = int(outputs[TOKENS][row].reshape(-1)[0])
        if not 0 <= token < self.vocab_size:
            raise GenerationError(
                f"The package drew token {token!r}; expected 0 to {self.vocab_size - 1:,}. It computes nonsense: build "
                "it again."
            )
        probs = outputs[_PROBS][row].reshape(-1) if self._tells else None
        return Sampled(token, probs)
