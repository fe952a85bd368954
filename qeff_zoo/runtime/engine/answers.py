# SPDX-License-Identifier: Apache-2.0
"""Request, and its generated text so far, token by token."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.adapters import BASE
from qeff_zoo.runtime.decoding.device_sampling import DeviceSampler, Drawing, Sampled
from qeff_zoo.runtime.decoding.encoder_inputs import ImagePrompt, Source
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, MultimodalSpans
from qeff_zoo.runtime.decoding.sampling import Drawn, Sampler, Sampling, TokenLogprobs, token_of
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.grammar import Grammar, Guide
from qeff_zoo.runtime.text.stop_strings import StopSequences, StopStrings
from qeff_zoo.runtime.text.thinking_budget import ThinkingBudget
from qeff_zoo.runtime.text.tokenizer import TextStream, Tokenizer

FinishReason: TypeAlias = Literal["eos", "stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Checked request, as `TextGenerationSession.request` returns it.

    Args:
        prompt: Token ids.
        scored: Further token ids of the prompt, whose log-probabilities are returned: they run as if generated.
        limit: Maximum number of tokens after `prompt`; they fit into the context.
        sampling: Sampling parameters.
        stop: Strings that end the answer, which ends before them.
        include_stop: Whether the text includes its stop string.
        eos_token_ids: Tokens that end the answer.
        text: The prompt's; None for one that was given as token ids.
        adapter: Name of one that the session has; None for the model as it is.
        spans: Images or recordings, if it has any.
        source: Token ids of the encoder's text, if the prompt is only the beginning of the answer; those of a question
            about an image include its placeholders.
        image: Array of the image for which a text is generated.
        settings: Generation settings.
        documents: Lengths of the documents at the beginning of the prompt, each computed independently.
        grammar: The form of the answer; None for any.
        shown: Added tokens that the text contains as they are.
        thinking: Budget of the reasoning; None for no limit.
        client: Client of the request: clients share the batch slots. Empty for a client of its own.
        salt: Salt of the keys in the prefix cache, which are shared among requests of one salt.
    """

    prompt: tuple[int, ...]
    limit: int
    scored: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    eos_token_ids: frozenset[int] = frozenset()
    text: str | None = None
    adapter: str | None = None
    spans: MultimodalSpans | None = None
    source: tuple[int, ...] = ()
    image: Array | None = field(default=None, compare=False)
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    documents: tuple[int, ...] = ()
    grammar: Grammar | None = None
    shown: frozenset[int] = frozenset()
    thinking: ThinkingBudget | None = None
    client: str = ""
    salt: bytes = b""

    @property
    def read(self) -> Source | ImagePrompt:
        """Input of the encoder."""
        if self.image is None:
            return self.source
        return ImagePrompt(self.source, self.image) if self.source else self.image

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens in the prompt, or in the encoder's text."""
        return len(self.source or self.prompt) + len(self.scored)

    @property
    def encoded(self) -> tuple[Encoded, ...]:
        """Encoded images or audio of the prompt."""
        return self.spans.parts if self.spans else ()


def require_no_choices(prompts: Iterable[object], choices: Mapping[str, Any]) -> None:
    """Reject options for prompts if one of them is a `Request`, which has its options already.

    Args:
        prompts: Texts, token ids or requests.
        choices: Options by name, including those at their defaults.

    Raises:
        GenerationError: If a request and options are given.
    """
    usual = (None, False, (), Sampling())
    given = [name for name, value in choices.items() if all(value != one for one in usual)]
    if given and any(isinstance(prompt, Request) for prompt in prompts):
        raise GenerationError(
            f"{', '.join(given)} cannot change a Request, which has its choices already. Expected prompts that are "
            f"texts or token ids. Give {', '.join(given)} to `request`, where it is made."
        )


@dataclass(frozen=True)
class Handover:
    """Prompt that another process has computed.

    Args:
        logits: After its last token, (vocab,).
        states: States of the batch slot, as `Decoder.save` returns them.
    """

    logits: Array
    states: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Addition of one step to a generation.

    Args:
        text: Text that is final; "" while a character or a stop string may be incomplete.
        token_ids: One token; empty for a cancelled request.
        logprobs: Log-probabilities of the tokens, if requested.
        finish_reason: Reason for the end of generation; None if it continues.
        stop_string: Stop string that ended it; None for another reason.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_string: str | None = None


class Answer:
    """Generation in progress for one request.

    Args:
        request: Request to generate for.
        tokenizer: Tokenizer that decodes tokens into text; None for a package without one.
        listen: A callback for every delta, called by the thread that runs the steps; with None if generation failed.
        guide: Guide that keeps the output to the request's grammar.
        sampler: Sampler of a program that samples on the device; None if the host samples.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        listen: Callable[[Delta | None], None] | None = None,
        guide: Guide | None = None,
        sampler: DeviceSampler | None = None,
    ) -> None:
        self.request = request
        #: Sampling state of a program that samples on the device; None if the host samples.
        self.drawing: Drawing | None = None
        if sampler:
            self.drawing = sampler.drawing(request.sampling, len(request.prompt), guide)
        #: Adapter that the session lent.
        self.adapter = BASE
        #: Scored tokens of the prompt, and generated tokens.
        self.token_ids: list[int] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.logprobs: list[TokenLogprobs] = []
        #: Prompt tokens that the prefix cache had, and that were not computed.
        self.reused_tokens = 0
        #: Prompt that another process computed, until it is in a batch slot.
        self.handed: Handover | None = None
        #: `time.perf_counter()` when the request first had a batch slot.
        self.started: float | None = None
        #: Number of drafted and checked tokens, and of the accepted tokens among them.
        self.drafted_tokens = self.accepted_tokens = 0
        #: Number of drafts by the number of their accepted tokens.
        self.drafts: Counter[int] = Counter()
        #: How often another client took the batch slot.
        self.evictions = 0
        self.finish_reason: FinishReason | None = None
        #: Error that ended generation, in place of a finish reason.
        self.error: Exception | None = None
        self._sampler = Sampler(
            request.sampling,
            [*request.prompt, *request.scored],
            guide,
            request.eos_token_ids,
            settings=request.settings,
            source=None if request.image is None and not request.source else request.source,
            limit=request.limit - len(request.scored),
        )
        self._stream = TextStream(tokenizer, request.shown) if tokenizer else None
        self._stops = StopStrings(request.stop, included=request.include_stop)
        self._ending: StopSequences | None = None
        if tokenizer and request.settings.stop_strings:
            self._ending = StopSequences(
                request.settings.stop_strings, tokenizer.spelled, [*request.prompt, *request.scored]
            )
        self._pieces: list[str] = []
        self._offset = 0  # start of the next token in the text
        self._listen = listen

    @property
    def text(self) -> str:
        """Generated text so far, without EOS token and stop string."""
        return "".join(self._pieces)

    @property
    def generated(self) -> list[int]:
        """Generated tokens."""
        return self.token_ids[len(self.request.scored) :]

    @property
    def stop_string(self) -> str | None:
        """Stop string that ended generation."""
        if self._stops.found:
            return self._stops.match
        return self._ending.match or None if self._ending else None

    @property
    def ended(self) -> bool:
        """Whether generation has ended."""
        return self.finish_reason is not None or self.error is not None

    def extend(self, logits: Array, guess: Drawn | None = None) -> None:
        """Sample the next token, or fail if a logit is not a number.

        Args:
            logits: Logits (vocab,) after the newest token.
            guess: Draft token with probabilities; None without a draft.
        """
        if self._is_scoring:
            self._score(logits)
            return
        try:
            token = self._sampler.next_of(logits, guess) if guess else self._sampler.next(logits)
        except GenerationError as error:
            self.fail(error)
            return
        self._add(token, self._sampler.logprobs(logits, token))

    @property
    def _is_scoring(self) -> bool:
        """Whether a token of the prompt is next, or none."""
        return len(self.token_ids) < len(self.request.scored) or self.request.limit == len(
            self.request.scored
        )

    def _score(self, logits: Array) -> None:
        """Append a token of the prompt with its log-probability; end if none is to be generated after the last."""
        scored = self.request.scored
        if scored:
            token = scored[len(self.token_ids)]
            self.prompt_logprobs.append(self._sampler.prompt_logprobs(logits, token))
            self.token_ids.append(token)
        if self.request.limit == len(self.token_ids):
            self._grow(Delta(text="", finish_reason="length"))

    def extend_by(self, drawn: Sampled) -> None:
        """Append a token that a program sampled, or fail if the grammar allows no further token."""
        logprobs = None
        if drawn.probs is not None:  # tiny for tokens that could not be sampled
            scores = np.log(np.maximum(drawn.probs, np.finfo(np.float32).tiny))
            logprobs = self._sampler.logprobs(scores, drawn.token)
        self._add(self._sampler.take(drawn.token), logprobs)
        if self.drawing and not self.ended:
            try:
                self.drawing.renew()
            except GenerationError as error:
                self.fail(error)

    def _add(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Append a token."""
        added = () if logprobs is None else (replace(logprobs, offset=self._offset),)
        self.token_ids.append(token)
        self.logprobs += added
        if token in self.request.eos_token_ids:
            reason: FinishReason | None = "eos"
            text = ""
        else:
            over = len(self.token_ids) >= self.request.limit
            ends = self._sampler.complete or (self._ending and self._ending.push(token))
            reason = "stop" if ends else "length" if over else None
            try:
                piece = self._stream.push(token) if self._stream else ""
            except GenerationError as error:
                self.fail(error)
                return
            self._offset += len(piece)
            early = (
                len(self.token_ids) - len(self.request.scored) < self.request.sampling.min_tokens
            )
            text = piece if early else self._stops.push(piece)
        if reason and not self._stops.found:
            text += self._rest()
        if self._stops.found:
            reason = "stop"
        self._grow(
            Delta(
                text=text,
                token_ids=(token,),
                logprobs=added,
                finish_reason=reason,
                stop_string=self.stop_string,
            )
        )

    def extend_as(self, draft: Sequence[int | Drawn], logits: Array) -> int:
        """Sample tokens as long as they match the draft, and one more.

        Args:
            draft: Draft token ids, with or without probabilities; empty for one token alone.
            logits: Logits (drafted tokens + 1, vocab) after the newest token and after each drafted token.

        Returns:
            Number of accepted draft tokens.
        """
        accepted = 0
        for guess, after in zip_longest(draft, logits):
            self.extend(after, guess if isinstance(guess, Drawn) else None)
            if guess is None or self.ended or self.token_ids[-1] != token_of(guess):
                break
            accepted += 1
        self.drafted_tokens += len(draft)
        self.accepted_tokens += accepted
        if draft:
            self.drafts[accepted] += 1
        return accepted

    def cancel(self) -> None:
        """End generation with the text so far."""
        self._grow(Delta(text=self._rest(), finish_reason="cancelled"))

    def fail(self, error: Exception) -> None:
        """End generation with an error."""
        self.error = error
        if self._listen:
            self._listen(None)

    def _rest(self) -> str:
        """Return text that was held back, which may still complete a stop string."""
        text = self._stops.push(self._stream.finish() if self._stream else "")
        return text if self._stops.found else text + self._stops.finish()

    def _grow(self, delta: Delta) -> None:
        self._pieces.append(delta.text)
        self.finish_reason = delta.finish_reason
        if self._listen:
            self._listen(delta)


def passing_on(
    stream: Callable[[int, str], None] | None, number: int
) -> Callable[[Delta | None], None] | None:
    """Return a callback that forwards the text of deltas, with the number of the prompt."""
    if stream is None:
        return None

    def listen(delta: Delta | None) -> None:
        if delta and delta.text:
            stream(number, delta.text)

    return listen
