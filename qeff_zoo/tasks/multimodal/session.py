# SPDX-License-Identifier: Apache-2.0
"""Base class of sessions with images or audio in the prompt: these and text in, generated text out."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.steps import Steps
from qeff_zoo.multimodal.encoding.prepared import Prepared
from qeff_zoo.package.files import read_json
from qeff_zoo.recipe_media import Media
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, MultimodalSpans
from qeff_zoo.runtime.engine.answers import Request, require_no_choices
from qeff_zoo.runtime.engine.prompts import Prompt, options_of
from qeff_zoo.runtime.engine.text_generation import Generation, Stream, TextGenerationSession
from qeff_zoo.runtime.program import Program
from qeff_zoo.runtime.text.chat_template import USUAL_CHAT, ChatOptions, Message
from qeff_zoo.tasks.multimodal.media_tokens import MediaTokens
from qeff_zoo.tasks.multimodal.prompt_settings import PromptSettings, TokenNames
from qeff_zoo.tasks.multimodal.prompt_text import PromptText

#: Default size of the feature cache in bytes.
FEATURE_CACHE_BYTES = 64 << 20
USUAL = PrefixCacheOptions()
#: Arguments of requests for inputs besides text, of any package.
_SHOWN = {"images", "videos", "audio"}


def listed(given: Any) -> list[Any]:
    """Return images or audio as a list; a single input may be given without one, and None for none."""
    if given is None:
        return []
    whole = str, bytes, os.PathLike, Mapping, np.ndarray
    # Files yield lines, and tensors rows.
    one = isinstance(given, whole) or hasattr(given, "read") or hasattr(given, "__array__")
    one = one or not isinstance(given, Iterable)
    return [given] if one else [*given]


class MediaTextSession(TextGenerationSession):
    """Base class of sessions whose prompts have images or audio.

    Args:
        folder: Folder of the package.
        program: Language model, opened.
        reader: Encoder of the images or audio.
        media: Declaration of the encoder in the package's manifest.
        prefixes: Options of the prefix cache, as in `TextGenerationSession`.

    Raises:
        GenerationError: If the package is of another task, or the KV cache does not fit into memory.
    """

    #: Modality of the prompts: the type of a part of a message, and the argument of a request.
    part: ClassVar[str]
    argument: ClassVar[str]
    #: Further arguments of a request with a list for each prompt.
    more: ClassVar[tuple[str, ...]] = ()

    reader: Any

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        reader: Reader,
        media: Media,
        prefixes: PrefixCacheOptions = USUAL,
    ) -> None:
        super().__init__(folder, program, prefixes=prefixes)
        whole = read_json(folder / "config.json")
        self.config = model_config(whole)
        self.media, self.reader = media, reader
        settings = PromptSettings.read(folder, media, reader.layout.settings)
        #: Tokens of the names in the recipe.
        self.names = TokenNames(self.config, self.tokenizer, settings, self._nouns)
        around = self.config.get(media.around, ())
        #: Tokens of images or audio in prompts.
        self.media_tokens = MediaTokens(self.names, media, reader, self.argument, around)
        #: Changes of a prompt's text before tokenization.
        self.prompt_text = PromptText(self.names, media, self.media_tokens)
        # A checkpoint of several models may have its end token in the tokenizer's file alone.
        if self.config is not whole and not self.eos_token_ids and "eos_token" in settings.special:
            self._end_at(self.names.tokens_of("eos_token"))
        if ends := media.ends:
            self._end_at([self.names.token_id(ends)])

    def prepare(self, given: Any) -> Prepared:
        """Return the encoder inputs of an image or audio input."""
        raise NotImplementedError

    def prepare_all(self, given: Sequence[Any]) -> list[Prepared]:
        """Return the encoder inputs of all images or audio of a prompt, in its order."""
        return [self.prepare(one) for one in given]

    def request(
        self, prompt: Prompt, *, chat: bool | ChatOptions = False, **choices: Any
    ) -> Request:
        """Return a checked request. Thread-safe.

        Args:
            prompt: A prompt as for `generate`, with a marker token for each image or audio input.
            chat: Whether the prompt is a user message: images or audio come before its text, by the chat template; or
                options of the template.
            **choices: Options of `TextGenerationSession.request`, and `argument`: images or audio in the prompt's
                order, or a single one.

        Raises:
            GenerationError: If the request is invalid.
            MediaError: If an image or audio input cannot be read.
        """
        given = listed(choices.pop(self.argument, ()))
        if chat and isinstance(prompt, str):
            tokens = self._message([self.part] * len(given), prompt, options_of(chat))
            created = self.request(tokens, **{**choices, self.argument: given})
            return replace(created, text=prompt)
        created = self.request_of(self._read(prompt), self.prepare_all(given), **choices)
        return replace(created, text=prompt) if isinstance(prompt, str) else created

    def _message(self, kinds: Sequence[str], text: str, options: ChatOptions) -> list[int]:
        """Return the tokens of a user message: an image, video or audio input for each of the kinds, then a text."""
        content = [*({"type": kind} for kind in kinds), {"type": "text", "text": text}]
        message = {"role": "user", "content": content if kinds else text}
        return self.encode_chat([message], options)

    def encode(self, prompt: Prompt, *, chat: bool | ChatOptions = False) -> list[int]:
        """See `PromptReader`; text begins with the opening of the model's processor."""
        if isinstance(prompt, str) and not chat:
            prompt = self.prompt_text.opened(prompt)
        return super().encode(prompt, chat=chat)

    def _adds_special_tokens(self, chat: str) -> bool:
        """See `PromptReader`; a processor adds the tokenizer's special tokens unless the text begins with BOS."""
        return self.prompt_text.adds_special_tokens(chat)

    def _rendered(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        text = self.prompt_text
        if self.media_tokens.mark and self.chat_template and not self._reads_parts(options):
            messages = [text.in_text(message) for message in messages]
        return text.opened(text.images_first(super()._rendered(messages, options)))

    def _reads_parts(self, options: ChatOptions) -> bool:
        """Return whether the selected template renders the parts of a user's message."""
        return self.chat_template is not None and self.chat_template.source(options).reads_parts(
            "user"
        )

    def _encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with one marker for each image or audio input."""
        special_tokens = special_tokens and self.names.settings.adds_special_tokens
        return super()._encode(self.prompt_text.marked(text), special_tokens=special_tokens)

    def _read(self, prompt: Prompt) -> Sequence[int]:
        """Return the tokens of a prompt, with the text changes of the model's processor."""
        tokens = self.prompt_text.tokens_of(prompt) if isinstance(prompt, str) else None
        return self.encode(prompt) if tokens is None else tokens

    def encoding(self, argument: str, given: Sequence[Any]) -> list[Steps[Encoded]]:
        """Return the encoding, in steps, of each image or recording of a prompt.

        Args:
            argument: Name of the argument of `request`, which accepts the results as well.
            given: Image or audio files.

        Raises:
            MediaError: If a file cannot be read; raised in a step.
        """
        raise NotImplementedError

    def look(self, prepared: Sequence[Prepared | Encoded]) -> list[Encoded]:
        """Return the encoded images or audio of a prompt."""
        return [one if isinstance(one, Encoded) else self.reader.look(one) for one in prepared]

    def request_of(
        self, tokens: Sequence[int], prepared: Sequence[Prepared], **choices: Any
    ) -> Request:
        """Return a request of token ids with one marker for each image or audio input, and of the encoder inputs.

        Raises:
            GenerationError: The prompt has other markers, or lacks an input that the model requires.
        """
        parts = self.look(prepared)
        lacking = all(part.kind != self.reader.kind for part in parts)
        if lacking and (self.media.whole == "prompt" or self.media.adapter):
            adapted = self.media.adapter
            why = "an adapter for those is in its weights" if adapted else "it is made for those"
            raise GenerationError(
                f"The prompt has no {self.argument}; expected one at least, since this model answers about those "
                f"alone: {why}. Give one (--{self.part})."
            )
        if not parts:  # the request may have expanded placeholders
            self.media_tokens.check_count(tokens, self.media_tokens.placeholder, 0)
            return super().request(tokens, **choices)
        rows = sum(part.rows for part in parts)
        if len(parts) < rows == sum(token == self.media_tokens.placeholder for token in tokens):
            return self.request_of_parts(tokens, parts, **choices)  # as some chat templates do
        whole = self.media_tokens.expanded(tokens, parts, self.run_of)
        return replace(
            super().request(whole, **choices), spans=self._arranged(whole, parts, len(whole))
        )

    def request_written_out(
        self, tokens: Sequence[int], prepared: Sequence[Prepared], **choices: Any
    ) -> Request:
        """Return a request of token ids with expanded placeholders, as processors return them."""
        return self.request_of_parts(tokens, self.look(prepared), **choices)

    def request_of_parts(
        self, tokens: Sequence[int], parts: Sequence[Encoded], **choices: Any
    ) -> Request:
        """As `request_written_out`, for encoded images or audio."""
        rows = sum(part.rows for part in parts)
        count = sum(token in self.media_tokens.placeholders for token in tokens)
        if count != rows:
            raise GenerationError(
                f"The prompt has {count} tokens for {self._nouns}, and its {len(parts)} {self._nouns} have {rows} "
                "rows; expected as many of both. Call the checkpoint's own processor with all of the prompt's."
            )
        created = super().request(tokens, **choices)
        created = (
            replace(created, text=self.tokenizer.decode(tokens)) if self.tokenizer else created
        )
        return (
            replace(created, spans=self._arranged(tokens, parts, len(tokens))) if parts else created
        )

    def generate(
        self,
        prompts: str | Sequence[Prompt | Request],
        *,
        stream: Stream | None = None,
        **choices: Any,
    ) -> list[Generation]:
        """Generate for prompts with images or audio.

        Args:
            prompts: Prompts as for `TextGenerationSession.generate`.
            stream: A callback for text as it is generated.
            **choices: Options of `TextGenerationSession.generate`, and `argument`: images or audio of the prompt, or
                a single one; for several prompts, a list with such a value for each.
        """
        every = [prompts] if isinstance(prompts, str) else [*prompts]
        if strange := sorted(_SHOWN & choices.keys() - {*self.takes}):
            raise GenerationError(
                f"The prompt has {' and '.join(strange)}, which this package does not read; expected "
                f"{' or '.join(self.takes)}. Leave them out, or build a package that reads them."
            )
        names = [name for name in self.takes if name in choices]
        shown = {name: listed(choices.pop(name)) for name in names}
        if isinstance(prompts, str):
            shown = {name: [given] for name, given in shown.items()}
        for name, given in shown.items():
            if given and len(given) != len(every):
                nouns = self._nouns if name == self.argument else name
                raise GenerationError(
                    f"There are {nouns} for {len(given)} prompts, and {len(every)} prompts; expected a list of "
                    f"{nouns} for each. Give an empty list where a prompt has none."
                )
        require_no_choices(every, choices)
        requests = [
            one
            if isinstance(one, Request)
            else self.request(
                one, **choices, **{name: given[at] for name, given in shown.items() if given}
            )
            for at, one in enumerate(every)
        ]
        return super().generate(requests, stream=stream)

    def _limit(
        self, tokens: Sequence[int], generation_len: int | None, documents: int = 0, least: int = 1
    ) -> int:
        # The placeholder may lie beyond all tokens that the model writes.
        own = self.media_tokens.own
        known = [0 if token in own else token for token in tokens]
        return super()._limit(known, generation_len, documents, least)

    @property
    def of_media(self) -> dict[str, Any]:
        """Manifest entries of the declaration, by argument, and the placeholder token."""
        return {self.argument: self._entry(), "placeholder": self.media_tokens.placeholder}

    def _entry(self) -> Mapping[str, Any]:
        """Return the manifest entry of the declaration."""
        raise NotImplementedError

    @property
    def takes(self) -> tuple[str, ...]:
        """Arguments of a request besides its prompt, such as `images`."""
        return (self.argument, *self.more)

    @property
    def most_parts(self) -> int:
        """Maximum number of images or audio inputs in a prompt; 0 if only the context limits it."""
        return 0

    @property
    def _nouns(self) -> str:
        return {"images": "images", "audio": "recordings"}[self.reader.kind]

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the placeholder tokens of an image or audio input, and those around them if there is a tokenizer."""
        return self.media_tokens.run_of(encoded)

    def run_begun(self, encoded: Encoded) -> list[int]:
        """Return the tokens of `run_of`, after those that a chat template has to write before them."""
        return self.media_tokens.begun(self.run_of(encoded))

    def spans(self, tokens: Sequence[int], prepared: Sequence[Prepared]) -> MultimodalSpans | None:
        """Return the encoded images or audio of a prompt with their positions.

        Args:
            tokens: Token ids with expanded placeholders; for attention over a whole prompt, they end with the last
                placeholder.
            prepared: Encoder inputs in the order of the prompt.
        """
        return self._arranged(tokens, self.look(prepared))

    def _arranged(
        self, tokens: Sequence[int], parts: Sequence[Encoded], prompt: int | None = None
    ) -> MultimodalSpans | None:
        if 0 < self.most_parts < len(parts):
            raise GenerationError(
                f"The prompt has {len(parts)} {self._nouns}; expected at most {self.most_parts}, for "
                "which the package has room. Leave some out, or build it with a larger --max-num-images, or without "
                "--single-program."
            )
        return self.media_tokens.spans(tokens, parts, prompt)
