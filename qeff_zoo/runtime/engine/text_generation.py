# SPDX-License-Identifier: Apache-2.0
"""Session of a text-generation package: prompts in, generated text and metrics out."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from qeff_zoo.checkpoint.generation_settings import (
    STRUCTURE,
    GenerationSettings,
    effective_of,
    problems,
)
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.runtime.caches.block_attention import DocumentCache
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions, open_prefix_cache
from qeff_zoo.runtime.decoding.adapters import Adapters
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.encoder_inputs import Sources
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.decoding.sampling import Sampling, TokenLogprobs
from qeff_zoo.runtime.engine.answers import (
    Answer,
    Delta,
    FinishReason,
    Request,
    passing_on,
    require_no_choices,
)
from qeff_zoo.runtime.engine.metrics import Metrics, measured
from qeff_zoo.runtime.engine.prompts import Prompt, PromptReader, brief, options_of
from qeff_zoo.runtime.engine.scheduling import Scheduler
from qeff_zoo.runtime.engine.speculation import Speculation
from qeff_zoo.runtime.program import Program, require
from qeff_zoo.runtime.text.chat_template import ChatOptions
from qeff_zoo.runtime.text.grammar import Grammar, Guide, Guides
from qeff_zoo.runtime.text.thinking_budget import BudgetGuide, ThinkingBudget

_USUAL = PrefixCacheOptions()
#: A callback with the number of a prompt and the text that was added to its output.
Stream: TypeAlias = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Result for one prompt.

    Args:
        prompt: Text of the prompt.
        text: Generated text, without the EOS token, and up to the first stop string.
        token_ids: All generated tokens.
        finish_reason: "eos"; "stop" for a stop string; "length" for the limit of `generation_len` or the context; or
            "cancelled".
        stop_string: Stop string that ended the text; None for another reason.
        prompt_tokens: Number of tokens in the prompt.
        prompt_token_ids: Token ids of the prompt, or of the encoder's text.
        logprobs: Log-probabilities of each token, if requested.
        prompt_logprobs: Log-probabilities of each token of the prompt but the first, if requested.
        reused_tokens: Number of prompt tokens that the prefix cache had.
        drafted_tokens: Number of drafted and checked tokens.
        accepted_tokens: Number of accepted tokens among them.
    """

    prompt: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    stop_string: str | None = field(default=None, compare=False)
    prompt_token_ids: tuple[int, ...] = field(default=(), repr=False)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    reused_tokens: int = field(default=0, compare=False)
    drafted_tokens: int = field(default=0, compare=False)
    accepted_tokens: int = field(default=0, compare=False)


class TextGenerationSession(PromptReader):
    """Open package of the task `text-generation`.

    One `generate` or `stream` runs at a time; `qeff_zoo.runtime.Engine` serves any number of threads.

    Args:
        folder: Folder of the package.
        program: Program of the package, opened.
        prefixes: Options of the prefix cache, which is kept from one `generate` to the next.

    Raises:
        GenerationError: If the package is of another task, or the KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/tiny-llama")  # doctest: +SKIP
        >>> session.generate(["Once upon a time"], generation_len=8)[0].text  # doctest: +SKIP
        ' there was a little girl named Lily'
    """

    task: ClassVar[str] = TEXT_GENERATION
    #: Output of its programs.
    output: ClassVar[str] = "logits"
    #: Whether the model takes one image that is not part of a prompt, and whether it takes languages.
    describes_images: ClassVar[bool] = False
    translates: ClassVar[bool] = False

    @property
    def takes(self) -> tuple[str, ...]:
        """Arguments of a request besides its prompt, such as `images`."""
        return ()

    @property
    def takes_files(self) -> bool:
        """Whether requests have images, videos or recordings."""
        return bool(self.takes) or self.describes_images

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        prefixes: PrefixCacheOptions = _USUAL,
    ) -> None:
        require(program, folder, TEXT_GENERATION, {"input_ids", "position_ids"}, {self.output})
        #: LoRA adapters for requests.
        self.adapters = Adapters(program, folder)
        self.decoder = self._decoder(folder, program)
        super().__init__(folder, self.decoder.sizes.ctx_len)
        #: Encoder of texts or images for the decoder; None for a decoder-only model.
        self.sources: Sources | None = None
        self._published = effective_of(folder)
        self._end_at(self._published_ends())
        #: Encoder of images or audio in prompts; None without one.
        self.reader: Reader | None = None
        #: Metrics of the last `generate` or `stream`.
        self.metrics: Metrics | None = None
        #: Speculative decoding; None without it. See `qeff_zoo.runtime.engine.speculation`.
        self.speculation: Speculation | None = None
        self._prefixes = open_prefix_cache(folder, self.decoder, prefixes)
        self._in_use = threading.Lock()

    def _decoder(self, folder: Path, program: Program) -> Decoder:
        """Return the calls of the program."""
        return Decoder(program, self.adapters)

    @cached_property
    def settings(self) -> GenerationSettings:
        """Settings of the checkpoint's generation_config.json, which apply to each request; they may be replaced.

        Raises:
            GenerationError: If transformers' `generate` would refuse a setting.
        """
        if faults := [*problems(self._published, self.decoder.vocab_size)]:
            raise GenerationError(
                "\n".join(faults)
                + f"\nThey are those of package {str(self.folder)!r}; --generation-config none ignores them."
            )
        return GenerationSettings.of(self._published)

    def _published_ends(self) -> Iterable[int]:
        try:
            return GenerationSettings.of(self._published, {"eos_token_id"}).eos_token_id
        except GenerationError as error:
            raise PackageError(
                f"Cannot read the settings of package {str(self.folder)!r}: {error} Expected the files as they were "
                "built. Build or pull it again."
            ) from error

    def ignore_generation_config(self) -> None:
        """Ignore the settings of generation_config.json, but for tokens that begin and end outputs."""
        self.settings = GenerationSettings.of(self._published, STRUCTURE)

    @property
    def default_sampling(self) -> Sampling:
        """Sampling parameters of a request without any."""
        return Sampling().over(self.settings)[0]

    def _end_at(self, tokens: Iterable[int]) -> None:
        """Set the tokens that end generation, with and without a grammar."""
        self.eos_token_ids = frozenset(tokens)
        #: Factory of guides for structured output.
        self.guides = Guides(self.tokenizer, self.decoder.vocab_size, self.eos_token_ids)

    @property
    def readers(self) -> Sequence[Reader]:
        """All encoders of images or audio."""
        return (self.reader,) if self.reader else ()

    def generate(
        self,
        prompts: str | Sequence[Prompt | Request],
        *,
        generation_len: int | None = None,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        include_stop: bool = False,
        ignore_eos: bool = False,
        chat: bool | ChatOptions = False,
        adapter: str | None = None,
        grammar: Grammar | None = None,
        documents: Sequence[Prompt] = (),
        settings: GenerationSettings | None = None,
        stream: Stream | None = None,
    ) -> list[Generation]:
        """Generate until EOS, a stop string, `generation_len` or the end of the context, for any number of prompts.

        Args:
            prompts: Texts, token ids as they are, or requests, which have their choices already.
            generation_len: Tokens per prompt at most; None for those of `settings`, or as many as the context holds.
            sampling: Sampling parameters; None for `default_sampling`.
            stop: Strings that end an answer before them.
            stop_token_ids: Tokens that end generation besides the model's EOS tokens.
            include_stop: Whether texts include their stop string.
            ignore_eos: Generate `generation_len` tokens whatever they are.
            chat: Whether each prompt is a user message, to which the chat template applies; or options of the
                template, such as `ChatOptions(variables={"enable_thinking": False})`.
            adapter: Name of one of `adapters`; None for the model as it is.
            grammar: Structured output; None for free text.
            documents: Documents before each prompt, as for `request`.
            settings: Generation settings, as for `request`.
            stream: Callback for new text.

        Returns:
            One result per prompt, in their order; `metrics` has the speed.

        Raises:
            GenerationError: If a prompt is empty, too long, or not of this vocabulary; an option is out of range; or
                another thread is using the session.
        """
        choices: dict[str, Any] = {
            "generation_len": generation_len,
            "sampling": sampling,
            "stop": stop,
            "stop_token_ids": stop_token_ids,
            "include_stop": include_stop,
            "ignore_eos": ignore_eos,
            "chat": chat,
            "adapter": adapter,
            "grammar": grammar,
            "documents": documents,
            "settings": settings,
        }
        every = [prompts] if isinstance(prompts, str) else prompts
        require_no_choices(every, choices)
        requests = [
            one if isinstance(one, Request) else self.request(one, **choices) for one in every
        ]
        answers = [
            self.answer(request, passing_on(stream, number))
            for number, request in enumerate(requests)
        ]
        with self.exclusively() as scheduler:
            for answer in answers:
                scheduler.submit(answer)
            while scheduler.step():
                pass
        self.metrics = measured(scheduler.timings, answers)
        return [self.generation(answer) for answer in answers]

    def stream(self, request: Prompt | Request) -> Iterator[Delta]:
        """Generate for one prompt, and yield what each step adds. Leaving the iteration early cancels generation.

        Afterwards `metrics` has the speed.

        Args:
            request: Text, token ids, or a request with its options.

        Raises:
            GenerationError: On the same conditions as `generate`.
        """
        if not isinstance(request, Request):
            request = self.request(request)
        fresh: list[Delta] = []
        answer = self.answer(request, lambda delta: fresh.append(delta) if delta else None)
        with self.exclusively() as scheduler:
            scheduler.submit(answer)
            while scheduler.step() or fresh:
                yield from fresh
                fresh.clear()
        self.metrics = measured(scheduler.timings, [answer])
        if answer.error:
            raise answer.error

    def request_of_parts(
        self, tokens: Sequence[int], parts: Sequence[Encoded], **choices: Any
    ) -> Request:
        """Return the request of a tokenized prompt and its encoded images or audio, of which text alone has none."""
        assert not parts
        return self.request(tokens, **choices)

    def request(
        self,
        prompt: Prompt,
        *,
        generation_len: int | None = None,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        include_stop: bool = False,
        ignore_eos: bool = False,
        chat: bool | ChatOptions = False,
        adapter: str | None = None,
        grammar: Grammar | None = None,
        documents: Sequence[Prompt] = (),
        thinking: ThinkingBudget | None = None,
        settings: GenerationSettings | None = None,
    ) -> Request:
        """Return a checked request. Thread-safe.

        Args:
            prompt: Text or token ids, as for `generate`.
            generation_len: Maximum number of tokens; None for the value of `settings`, or the rest of the context.
            sampling: Sampling parameters; None for `default_sampling`.
            stop: Stop strings.
            stop_token_ids: Tokens that end generation besides the model's EOS tokens.
            include_stop: Whether the text includes its stop string.
            ignore_eos: Whether EOS tokens do not end generation.
            chat: Whether the prompt is a user message; or options of the chat template.
            adapter: Name of one of `adapters`.
            grammar: Structured output.
            documents: Documents before the prompt, computed independently (block attention); the session is opened
                with `block_attention`. In a chat they begin the user's message.
            thinking: Budget of the reasoning of a chat; None for no limit.
            settings: Generation settings in place of the session's `settings`, such as
                `session.settings.updated(no_repeat_ngram_size=3)`.

        Raises:
            GenerationError: If the request is invalid.
            AdapterError: If no such adapter is loaded.
        """
        settings = replace(
            self.settings if settings is None else settings,
            eos_token_id=tuple(sorted(self.eos_token_ids)),
        )
        sampling, settings = (sampling or Sampling()).over(settings)
        if adapter is not None:
            self.adapters.find(adapter)
        if grammar is not None:
            if ignore_eos:
                raise GenerationError(
                    "An answer of a given form cannot go on beyond its end; expected ignore_eos to be left out. Leave "
                    "it out, or the grammar."
                )
            self.guides.check(grammar)
            if sampling.min_tokens:
                raise GenerationError(
                    f"min_tokens is {sampling.min_tokens:,}, and a grammar ends the text where nothing may follow; "
                    "expected one of them. Leave one out."
                )
        if thinking is not None and self.tokenizer is not None:
            _ = self.tokenizer.completions  # read here, so that no other request waits for it
        self.decoder.check(sampling, settings, grammar or thinking)
        sampling = self._in_tokens(sampling)
        self._check_vocabulary(stop_token_ids, "stop_token_ids")
        ends = frozenset() if ignore_eos else self.eos_token_ids
        if ignore_eos:
            settings = replace(settings, eos_token_id=(), forced_eos_token_id=())
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in stops:
            raise GenerationError(
                "Cannot stop at ''; expected strings of at least one character. Leave it out."
            )
        if (stops or settings.stop_strings) and self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json and cannot stop at "
                f"{brief((*stops, *settings.stop_strings)[0])}; expected no stop strings. Leave them out."
            )
        messages = [{"role": "user", "content": str(prompt)}] if chat else prompt
        parts = (
            self.encode_parts(messages, documents, options_of(chat))
            if documents
            else [self.encode(prompt, chat=chat)]
        )
        tokens = tuple(token for part in parts for token in part)
        scores = sampling.prompt_logprobs is not None
        if scores and (documents or self.takes or self.sources):
            raise GenerationError(
                "Log-probabilities of a prompt are computed for text alone, without documents, by packages of "
                f"{TEXT_GENERATION}; expected no prompt_logprobs. Leave them out."
            )
        if generation_len is None and 0 < len(tokens) < self.decoder.sizes.ctx_len:
            generation_len = settings.limit(len(tokens))
        limit = self._limit(tokens, generation_len, len(documents), least=0 if scores else 1)
        scored = tokens[1:] if scores else ()
        return Request(
            prompt=tokens[: len(tokens) - len(scored)],
            scored=scored,
            limit=limit + len(scored),
            sampling=sampling,
            stop=stops,
            include_stop=include_stop,
            eos_token_ids=ends | {*stop_token_ids},
            text=prompt if isinstance(prompt, str) else None,
            adapter=adapter,
            documents=tuple(len(part) for part in parts[:-1]),
            grammar=grammar,
            thinking=thinking,
            settings=settings,
        )

    def allow_documents(self) -> None:
        """Allow requests with documents that are computed independently; the rotation of keys is measured first.

        Raises:
            GenerationError: If the model's keys cannot be rotated to other positions, or the session is in use.
        """
        with self.exclusively():
            self.document_cache = DocumentCache(self.decoder, self.folder, self._prefixes.kept)

    def answer(
        self, request: Request, listen: Callable[[Delta | None], None] | None = None
    ) -> Answer:
        """Return the empty generation of a request, for a scheduler.

        Raises:
            GenerationError: If the request is of a session with a longer context.
        """
        ctx_len = self.decoder.sizes.ctx_len
        if len(request.prompt) + request.limit > ctx_len:
            raise GenerationError(
                f"A request of {len(request.prompt):,} and at most {request.limit:,} more tokens does not fit; "
                f"expected {ctx_len:,} in all. Make it with this session's `request`."
            )
        guide: Guide | None = None
        if request.grammar is not None:
            guide = self.guides.guide(request.grammar)
        if request.thinking is not None and self.tokenizer is not None:
            vocab_size = self.decoder.vocab_size
            guide = BudgetGuide(request.thinking, guide, self.tokenizer, vocab_size)
        answer = Answer(request, self.tokenizer, listen, guide, self.decoder.sampler)
        answer.adapter = self.adapters.lend(request.adapter, answer)
        return answer

    def generation(self, answer: Answer) -> Generation:
        """Return the result of a generation that has ended.

        Raises:
            GenerationError: If generation failed.
        """
        if answer.error:
            raise answer.error
        assert answer.finish_reason is not None
        request = answer.request
        decode = self.tokenizer.decode if self.tokenizer else lambda _: ""
        sampling = request.sampling
        return Generation(
            prompt=decode(request.source or [*request.prompt, *request.scored])
            if request.text is None
            else request.text,
            text=answer.text,
            token_ids=answer.generated,
            finish_reason=answer.finish_reason,
            stop_string=answer.stop_string,
            prompt_tokens=request.prompt_tokens,
            prompt_token_ids=request.source or (*request.prompt, *request.scored),
            logprobs=None if sampling.logprobs is None else answer.logprobs,
            prompt_logprobs=None if sampling.prompt_logprobs is None else answer.prompt_logprobs,
            reused_tokens=answer.reused_tokens,
            drafted_tokens=answer.drafted_tokens,
            accepted_tokens=answer.accepted_tokens,
        )

    @property
    def shown(self) -> Mapping[str, int]:
        """Numbers of images or audio inputs in requests so far, of encoded ones, and of bytes, as `Stats` has them."""
        counts: dict[str, int] = {reader.kind: reader.asked for reader in self.readers}
        encoded = {f"encoded_{reader.kind}": reader.read for reader in self.readers}
        return {**counts, **encoded, "feature_bytes": sum(reader.used for reader in self.readers)}

    @property
    def kept_bytes(self) -> int:
        """Size of the prefix cache in bytes."""
        return self._prefixes.used

    @contextmanager
    def exclusively(self) -> Iterator[Scheduler]:
        """Yield a scheduler of the session's batch slots; only one exists at a time.

        Raises:
            GenerationError: If there is one already.
        """
        if not self._in_use.acquire(blocking=False):
            raise GenerationError(
                f"The session of {str(self.folder)!r} is generating already; expected one `generate` at a time. Wait "
                "for it, or give all requests to one qeff_zoo.runtime.Engine, which serves any number of threads."
            )
        try:
            yield Scheduler(
                self.decoder, self._prefixes, self.speculation, self.sources, self.document_cache
            )
        finally:
            self._in_use.release()

    def _in_tokens(self, sampling: Sampling) -> Sampling:
        """Return sampling parameters whose words are token ids, each text at the start of a word and within one."""
        words: list[tuple[int, ...]] = []
        for word in sampling.bad_words:
            if isinstance(word, str):
                forms = (word, f" {word.lstrip()}")
                words += dict.fromkeys(
                    tuple(self._encode(form, special_tokens=False)) for form in forms
                )
            else:
                words.append(word)
        for name, tokens in (
            ("logit_bias", sampling.logit_bias),
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
            ("bad_words", [token for word in words for token in word]),
        ):
            self._check_vocabulary(tokens, name)
        if sampling.dry is not None:
            sampling = replace(sampling, dry=sampling.dry.resolved(self.tokenizer))
        return replace(sampling, bad_words=tuple(words)) if words else sampling

    def _check_vocabulary(self, tokens: Iterable[int], where: str) -> None:
        vocab_size = self.decoder.vocab_size
        foreign = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model ({where}); expected 0 to {vocab_size - 1:,}. "
                "Encode text with the package's own tokenizer."
            )

    def _limit(
        self, tokens: Sequence[int], generation_len: int | None, documents: int = 0, least: int = 1
    ) -> int:
        """Check a request; return its maximum number of generated tokens."""
        ctx_len = self.decoder.sizes.ctx_len
        if generation_len is not None and generation_len < least:
            raise GenerationError(
                f"Cannot generate {generation_len!r} tokens; expected at least {least}. Change how many are asked for."
            )
        if not tokens:
            raise GenerationError(
                "A prompt of [] tokens cannot be continued; expected at least one token, and this "
                "package's tokenizer adds none of its own. Give it some text."
            )
        if len(tokens) + 1 > ctx_len:
            raise self._too_long(f"{len(tokens):,}", documents)
        self._check_vocabulary(tokens, "the prompt")
        room = ctx_len - len(tokens)
        limit = room if generation_len is None else min(room, generation_len)
        if limit > 1 and not self.decoder.sizes.decodes:
            raise GenerationError(
                f"Package {str(self.folder)!r} runs prompts alone (--prefill-only) and cannot generate {limit:,} "
                "tokens; expected one. Serve it with `serve --role prefill`, and ask the server of a package that "
                "decodes."
            )
        return limit
