# SPDX-License-Identifier: Apache-2.0
"""A text-generation package as a session: prompts in, generated text and metrics out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.chat_template import ChatTemplate
from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.sampling import greedy
from qeff_zoo.runtime.scheduling import FinishReason, Request, Timings, serve
from qeff_zoo.runtime.sizes import Specializations
from qeff_zoo.runtime.tokenizer import TextStream, Tokenizer, read_json

#: Text, or token ids.
Prompt: TypeAlias = str | Sequence[int]
#: Called with the number of a prompt and the text that was added to its answer.
Stream: TypeAlias = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What came of one prompt.

    Args:
        prompt: As text.
        text: Generated text, without the EOS token.
        token_ids: Generated tokens, the EOS token included if there was one.
        finish_reason: "eos", or "length" where `generation_len` or the cache ended it.
        prompt_tokens: Tokens of the prompt.
    """

    prompt: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How fast it went.

    Args:
        prompt_tokens: Of all prompts.
        generated_tokens: Of all answers.
        ttft_s: Seconds to the first token of the first prompt.
        prefill_tokens_per_s: Prompt tokens by the time of prefill calls.
        decode_tokens_per_s: Generated tokens by the time of decode calls; 0 where there were none.
        total_s: Seconds in all.
    """

    prompt_tokens: int
    generated_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    total_s: float

    def as_dict(self) -> dict[str, float]:
        """Return the values as JSON ones."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.prompt_tokens:,} prompt tokens at {self.prefill_tokens_per_s:,.1f}/s, first answer after "
            f"{self.ttft_s:.2f} s; {self.generated_tokens:,} tokens at {self.decode_tokens_per_s:,.1f}/s; "
            f"{self.total_s:.2f} s in all"
        )


class TextGenerationSession:
    """An opened package of the task `text-generation`.

    Args:
        folder: The package.
        specializations: As in its manifest.
        threads: That compute one operator; None for one per physical core.
        prepack: See `qeff_zoo.runtime.onnx_session.open_graph`.

    Raises:
        GenerationError: Another task's package, or the KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/tiny-llama")  # doctest: +SKIP
        >>> session.generate(["Once upon a time"], generation_len=8)[0].text  # doctest: +SKIP
        ' there was a little girl named Lily'
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
        self.decoder = Decoder.open(folder, specializations, threads=threads, prepack=prepack)
        self.tokenizer = Tokenizer.find(folder)
        self.chat_template = ChatTemplate.find(folder)
        self.eos_token_ids = _eos_token_ids(folder)
        #: Of the last `generate`.
        self.metrics: Metrics | None = None

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        generation_len: int | None = None,
        stream: Stream | None = None,
        chat: bool = False,
    ) -> list[Generation]:
        """Generate greedily until EOS, `generation_len` or the end of the cache, for any number of prompts.

        Args:
            prompts: Texts, or token ids as they are.
            generation_len: Tokens per prompt at most; None for as many as the cache holds.
            stream: Told of text as it comes.
            chat: Each prompt is a user's message: apply the chat template.

        Returns:
            One per prompt, in their order; `metrics` has the speed.

        Raises:
            GenerationError: A prompt is empty, too long, or not of this vocabulary.
        """
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        encoded = [self.encode(prompt, chat=chat) for prompt in asked]
        requests = [
            Request(number, tokens, self._limit(tokens, generation_len))
            for number, tokens in enumerate(encoded)
        ]
        texts = [_Text(self.tokenizer, self.eos_token_ids, stream) for _ in requests]
        timings = serve(
            self.decoder,
            requests,
            greedy,
            self.eos_token_ids,
            lambda request: texts[request.number].grow(request),
        )
        self.metrics = _metrics(timings, requests)
        return [self._generation(asked[one.number], one) for one in requests]

    def encode(self, prompt: Prompt, *, chat: bool = False) -> list[int]:
        """Turn a prompt into token ids, as `generate` does.

        Args:
            prompt: Text, or token ids as they are.
            chat: The prompt is a user's message: apply the chat template.
        """
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json and cannot take the text "
                f"{_brief(prompt)}; expected token ids. Give a list of them."
            )
        if not chat:
            return self.tokenizer.encode(prompt)
        if self.chat_template is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no chat template for {_brief(prompt)}; expected "
                "one from its checkpoint. Run without --chat: a base model continues plain text."
            )
        text = self.chat_template.render([{"role": "user", "content": prompt}])
        return self.tokenizer.encode(text, special_tokens=False)  # the template has written them

    def _limit(self, tokens: Sequence[int], generation_len: int | None) -> int:
        """Check a request; return how many tokens it may generate."""
        ctx_len, vocab_size = self.decoder.sizes.ctx_len, self.decoder.vocab_size
        if generation_len is not None and generation_len < 1:
            raise GenerationError(
                f"Cannot generate {generation_len!r} tokens; expected at least 1. Change "
                "--generation-len."
            )
        if not tokens:
            raise GenerationError(
                "A prompt of [] tokens cannot be continued; expected at least one token, and this "
                "package's tokenizer adds none of its own. Give it some text."
            )
        if len(tokens) + 1 > ctx_len:
            raise GenerationError(
                f"A prompt has {len(tokens):,} tokens; expected at most {ctx_len - 1:,}, which "
                f"leaves one of ctx_len {ctx_len:,} to generate. Shorten it, or build the package "
                "with a larger --ctx-len."
            )
        foreign = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {vocab_size - 1:,}. "
                "Encode the prompt with the package's own tokenizer."
            )
        room = ctx_len - len(tokens)
        return room if generation_len is None else min(room, generation_len)

    def _generation(self, prompt: Prompt, request: Request) -> Generation:
        def decode(tokens: Sequence[int]) -> str:
            return self.tokenizer.decode(tokens) if self.tokenizer else ""

        assert request.finish_reason is not None
        answer = request.generated[: -1 if request.finish_reason == "eos" else None]
        return Generation(
            prompt=prompt if isinstance(prompt, str) else decode(request.prompt),
            text=decode(answer),
            token_ids=request.generated,
            finish_reason=request.finish_reason,
            prompt_tokens=len(request.prompt),
        )


class _Text:
    """Passes a request's text on while it is generated."""

    def __init__(
        self, tokenizer: Tokenizer | None, stops: frozenset[int], stream: Stream | None
    ) -> None:
        self._stream = stream
        self._text = TextStream(tokenizer) if tokenizer and stream else None
        self._stops = stops

    def grow(self, request: Request) -> None:
        """Pass on what the newest token completes."""
        if self._text is None or self._stream is None:
            return
        ended = request.finish_reason == "eos"
        piece = "" if ended else self._text.push(request.generated[-1])
        if request.finish_reason:
            piece += self._text.finish()
        if piece:
            self._stream(request.number, piece)


def _eos_token_ids(folder: Path) -> frozenset[int]:
    """Read every token that ends an answer; a model without a generation config has it in its config."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset()


def _metrics(timings: Timings, requests: Sequence[Request]) -> Metrics:
    now = time.perf_counter()
    return Metrics(
        prompt_tokens=sum(len(request.prompt) for request in requests),
        generated_tokens=sum(len(request.generated) for request in requests),
        ttft_s=(timings.first or now) - timings.begun,
        prefill_tokens_per_s=_rate(timings.prefill_tokens, timings.prefill_seconds),
        decode_tokens_per_s=_rate(timings.decode_tokens, timings.decode_seconds),
        total_s=now - timings.begun,
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _brief(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
