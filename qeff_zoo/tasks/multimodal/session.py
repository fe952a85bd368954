# SPDX-License-Identifier: Apache-2.0
"""Base class of sessions with images or audio in the prompt: these and text in, generated text out."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from qeff_zoo.checkpoint.config import model_config, token_of
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.steps import Steps
from qeff_zoo.package.files import read_json
from qeff_zoo.recipe_media import Media
from qeff_zoo.runtime.answers import Request, require_no_choices
from qeff_zoo.runtime.chat_template import USUAL_CHAT, ChatOptions, Message, special_tokens
from qeff_zoo.runtime.feature_cache import Reader
from qeff_zoo.runtime.multimodal_spans import Encoded, MultimodalSpans, arrange
from qeff_zoo.runtime.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.prompts import Prompt, options_of
from qeff_zoo.runtime.text_generation import Generation, Stream, TextGenerationSession

#: Output of a processor for one image or audio input: arguments of the model's forward.
Prepared: TypeAlias = Mapping[str, Array]
#: Default size of the feature cache in bytes.
FEATURE_CACHE_BYTES = 64 << 20
USUAL = PrefixCacheOptions()
#: Suffixes of config fields with a token, and with several.
_FIELDS = "_id", "_index"
_LISTS = "_ids"
#: Suffix of the names of special tokens.
_SPECIAL = "_token"
#: Arguments for what some packages are shown beside text.
_SHOWN = {"images", "videos", "audio"}


def listed(given: Any) -> list[Any]:
    """Return images or audio as a list; a single input may be given without one."""
    whole = str, bytes, os.PathLike, Mapping, np.ndarray
    one = isinstance(given, whole) or not isinstance(given, Iterable)
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
        #: Placeholder token of a feature.
        self.placeholder = self._id(media.token)
        #: All tokens that are replaced by features.
        self.placeholders = {self.placeholder, *self.config.get(media.around, ())}
        #: Further tokens of an image, which attend bidirectionally to its image tokens.
        self.among = {self._id(name) for name in media.among}
        #: Token before each marker, by which the model finds it.
        self._begun = [self._id(media.begun)] if media.begun else []
        self._learn_writing(folder)
        # A checkpoint of several models may have its end token in the tokenizer's file alone.
        if self.config is not whole and not self.eos_token_ids and "eos_token" in self._special:
            self._end_at(self._named("eos_token"))
        if ends := media.ends:
            self._end_at([self._id(ends)])
        #: Token that marks a whole image or audio input in a prompt before expansion, and the text of a marker that
        #: is not a token.
        self.marker, self._mark = self._marker(media.marker or media.token)
        #: Markers by argument of a request.
        self.markers = {self.argument: self.marker}
        #: Text around markers that need spacing in a prompt.
        self.spaced = {self.marker: media.spaced} if media.spaced else {}

    def _learn_writing(self, folder: Path) -> None:
        """Read the text conventions for prompts and images from a checkpoint's files."""
        processor = read_json(folder / "processor_config.json")
        #: Settings that transformers' processor has built in.
        self._held = read_json(folder / PROCESSOR_SETTINGS)
        #: Tokens of the checkpoint's processor that replace those of its class.
        self._renamed: Mapping[str, str] = self._held.get("renamed_tokens", {})
        settings = self.reader.layout.settings
        #: Processor settings that the layout depends on.
        self._writing = {name: processor[name] for name in settings if name in processor}
        of_images = processor.get("image_processor")
        of_images = of_images or read_json(folder / "preprocessor_config.json")
        #: Tokens around the number of each image.
        self._numbered: Sequence[str] = getattr(self.media, "numbered", ())
        if not of_images.get("use_image_id", True):
            self._numbered = ()
        self._special = special_tokens(folder)
        names = (self._special.get(name) for name in self.media.opening)
        #: Text that every prompt begins with.
        self._opening = self._held.get("opening") or next(filter(None, names), "")

    def _marker(self, named: str) -> tuple[int, str]:
        """Return the token of a marker, and its text if that is not a token.

        Args:
            named: Field of the config, or a text; a text of the checkpoint's processor overrides it.
        """
        held = self._held.get("image_token") if self.argument == "images" else None
        text = held or ("" if named.endswith(_FIELDS) else named)
        token = self.tokenizer.token_id(text) if held and self.tokenizer else None
        if token is not None:
            return token, ""
        return (self.placeholder, text) if text else (self._id(named), "")

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
            prompt: A prompt as for `generate`, with a marker token at the place of each image or audio input.
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
            made = self.request(tokens, **{**choices, self.argument: given})
            return replace(made, text=prompt)
        made = self.request_of(self._read(prompt), self.prepare_all(given), **choices)
        return replace(made, text=prompt) if isinstance(prompt, str) else made

    def _message(self, kinds: Sequence[str], text: str, options: ChatOptions) -> list[int]:
        """Return the tokens of a user message: an image, video or audio input for each of the kinds, then a text."""
        content = [*({"type": kind} for kind in kinds), {"type": "text", "text": text}]
        message = {"role": "user", "content": content if kinds else text}
        return self.encode_chat([message], options)

    def encode(self, prompt: Prompt, *, chat: bool | ChatOptions = False) -> list[int]:
        """See `PromptReader`; text begins with the opening of the model's processor."""
        if isinstance(prompt, str) and not chat:
            prompt = self._opened(prompt)
        return super().encode(prompt, chat=chat)

    def _adds_special_tokens(self, chat: str) -> bool:
        """See `PromptReader`; a processor adds the tokenizer's special tokens unless the text begins with BOS."""
        begin = self._special.get("bos_token")
        begun = bool(begin and chat.startswith(begin))
        processed = bool(self._held.keys() - {"feature_extractor"})
        return processed and not begun

    def _rendered(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        if self._mark and self.chat_template and not self._reads_parts(options):
            messages = [self._in_text(message) for message in messages]
        return self._opened(self._images_first(super()._rendered(messages, options)))

    def _reads_parts(self, options: ChatOptions) -> bool:
        """Return whether the selected template renders the parts of a user's message."""
        return self.chat_template is not None and self.chat_template.source(options).reads_parts(
            "user"
        )

    def _in_text(self, message: Message) -> Message:
        """Return a message with markers in its text, for a template that renders text alone."""
        content = message.get("content")
        if not isinstance(content, list):
            return message
        parts = (part.get("text", f"{self._mark}\n") for part in content)
        return {**message, "content": "".join(parts)}

    def _images_first(self, text: str) -> str:
        """Return a rendered chat with its markers before all text, if the model's processor puts images there."""
        if not self.media.before_text:
            return text
        rest = text.replace(f"{self._mark}\n", "").replace(self._mark, "")
        return self._mark * text.count(self._mark) + self.media.before_text + rest

    def _opened(self, text: str) -> str:
        """Return a prompt with the text that transformers' processor adds before every prompt."""
        if not self._held.get("opening_follows_images"):
            return text if text.startswith(self._opening) else self._opening + text
        rest, marker = text, self._held["image_token"]
        while rest.startswith(marker):
            rest = rest.removeprefix(marker)
        leading = text[: len(text) - len(rest)]
        return text if self._opening in text else leading + self._opening + rest

    def _encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with one marker for each image or audio input."""
        if self._mark and self.tokenizer is not None:
            text = text.replace(self._mark, self.tokenizer.name(self.marker))
        for marker, form in self.spaced.items():
            if self.tokenizer is None:
                break
            shown = self.tokenizer.name(marker)
            before_words = r"(?=[^\s<])" if form.endswith(" ") else ""
            text = form.format(shown).join(re.split(re.escape(shown) + before_words, text))
        special_tokens = special_tokens and self._held.get("add_special_tokens", True)
        return super()._encode(text, special_tokens=special_tokens)

    def _read(self, prompt: Prompt) -> Sequence[int]:
        """Return the tokens of a prompt, with the text changes of the model's processor."""
        form = self.media.text
        if not form or not isinstance(prompt, str) or self.tokenizer is None:
            return self.encode(prompt)
        mark = self._mark or self.tokenizer.piece(self.placeholder).strip()
        *before, text = prompt.split(mark) if mark else [prompt]
        if not before:
            return self.encode(prompt)
        if self._encoded(mark) == [self.placeholder]:
            return self._encoded(mark.join([*before, form.format(text)]))
        # The mark is no special token, or none at all: texts are tokenized apart, since they would change next to it.
        parts = ([*self._encoded(part), self.placeholder] for part in before)
        return [*chain.from_iterable(parts), *self._encoded(form.format(text))]

    def _encoded(self, text: str) -> list[int]:
        assert self.tokenizer is not None
        return self.tokenizer.encode(text, special_tokens=False) if text else []

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
        """Return a request of token ids with one marker for each image or audio input, and of the encoder inputs."""
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
            self._check_count(tokens, self.placeholder, 0)
            return super().request(tokens, **choices)
        rows = sum(part.rows for part in parts)
        if len(parts) < rows == sum(token == self.placeholder for token in tokens):
            return self.request_of_parts(tokens, parts, **choices)  # as some chat templates do
        whole = self._written_out(tokens, parts)
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
        found = sum(token in self.placeholders for token in tokens)
        if found != rows:
            raise GenerationError(
                f"The prompt has {found} tokens for {self._nouns}, and its {len(parts)} {self._nouns} have {rows} "
                "rows; expected as many of both. Call the checkpoint's own processor with all of the prompt's."
            )
        made = super().request(tokens, **choices)
        made = replace(made, text=self.tokenizer.decode(tokens)) if self.tokenizer else made
        return replace(made, spans=self._arranged(tokens, parts, len(tokens))) if parts else made

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
        own = self.placeholders | self.among
        known = [0 if token in own else token for token in tokens]
        return super()._limit(known, generation_len, documents, least)

    @property
    def of_media(self) -> dict[str, Any]:
        """Manifest entries of the declaration, by argument, and the placeholder token."""
        return {self.argument: self._entry(), "placeholder": self.placeholder}

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

    def _written_out(self, tokens: Sequence[int], parts: Sequence[Encoded]) -> list[int]:
        """Expand the marker of each image or audio input into placeholder tokens and the tokens around them."""
        if len(self.markers) == 1:  # else they were counted already
            self._check_count(tokens, self.marker, len(parts))
        self._check_begun(tokens)
        own = (self.placeholders | self.among) - {*self.markers.values(), self.placeholder}
        if taken := own & {*tokens}:
            raise GenerationError(
                f"The prompt has the tokens {sorted(taken)}, which stand around {self._nouns}; expected them to be "
                "written by this package alone. Leave them out."
            )
        left, number, whole = iter(parts), 0, list[int]()
        joined = self.reader.layout.joined
        for token in tokens:
            if token in self.markers.values():
                part = next(left)
                run = self._number(number) * part.numbered + self.run_of(part)
                # A shared token ends an image and begins the next.
                whole += run[1:] if joined and whole[-1:] == run[:1] else run
                number += part.numbered
            else:
                whole.append(token)
        return whole

    def _number(self, number: int) -> list[int]:
        """Return the tokens with the number of preceding images or audio inputs, for processors that write them."""
        if not self._numbered:
            return []
        begin, end = self._numbered
        return self._all_named((begin, str(number), end))

    def _check_count(self, tokens: Sequence[int], marker: int, parts: int, nouns: str = "") -> None:
        shown = self.tokenizer.piece(marker).strip() if self.tokenizer else marker
        count = sum(token == marker for token in tokens)
        self._check_places(count, self._mark or shown, parts, nouns or self._nouns)

    def _check_places(self, count: int, shown: str | int, parts: int, nouns: str) -> None:
        if count != parts:
            raise GenerationError(
                f"The prompt has {count} places for {nouns}, and there are {parts} {nouns}; expected as many of both. "
                f"Write {shown!r} where each belongs, or use the chat template (--chat), which writes it, so that a "
                "message's text needs none."
            )

    def _check_begun(self, tokens: Sequence[int]) -> None:
        before = {tokens[at - 1] for at, token in enumerate(tokens) if at and token == self.marker}
        if not self._begun or (before <= {*self._begun} and tokens[0] != self.marker):
            return
        begin = self.tokenizer.piece(self._begun[0]).strip() if self.tokenizer else self._begun[0]
        raise GenerationError(
            f"The prompt has a place for {self._nouns} without {begin!r} before it, by which the model finds it; "
            "expected that before each. Write it, and what ends it, or use the chat template (--chat), which does."
        )

    def place(self, argument: str) -> list[int]:
        """Return the tokens that a chat template writes for an image or audio input, by argument of `markers`."""
        begun = self._begun if argument == self.argument else ()
        return [*begun, self.markers[argument]]

    def run_begun(self, encoded: Encoded) -> list[int]:
        """Return the tokens of `run_of`, after those that a chat template has to write before them."""
        return [*self._begun, *self.run_of(encoded)]

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the placeholder tokens of an image or audio input, and those around them if there is a tokenizer."""
        whole = self._all_named(self.media.before)
        for part in self.reader.layout.write(encoded.grid, encoded.rows, **self._writing):
            whole += [self.placeholder] * part if isinstance(part, int) else self._named(part)
        return whole + self._all_named(self.media.after)

    def _all_named(self, names: Sequence[int | str]) -> list[int]:
        return [token for one in names for token in self._named(one)]

    def _named(self, one: int | str) -> list[int]:
        """Return the tokens for a name in a recipe: an id, a field of the config, a special token, or a text."""
        if isinstance(one, int):
            return [one]
        if one.endswith(_FIELDS):
            return [self._id(one)]
        one = self._renamed_text(one)
        if one.endswith(_SPECIAL) and self.tokenizer is not None:
            one = self._special_token(one)
        name, _, at = one.rpartition(".")
        if name.endswith(_LISTS):
            return [int(self.config[name][int(at)])]
        if self.tokenizer is None:
            return []
        found, whole = self._encoded(one), self.tokenizer.token_id(one)
        # A token that is not special may be split differently when it stands alone.
        return found if len(found) == 1 or whole is None else [whole]

    def _renamed_text(self, text: str) -> str:
        """Return the text that replaces a token of the processor's class, or one of its numbered tokens: "TILE_2"."""
        stem, _, number = text.rpartition("_")
        if number.isdigit() and stem in self._renamed:
            return f"{self._renamed[stem]}_{number}"
        return self._renamed.get(text, text)

    def _special_token(self, name: str) -> str:
        if name not in self._special:
            raise GenerationError(
                f"tokenizer_config.json of the package has no {name!r}; expected the token that is written for "
                f"{self._nouns}. Add it to the checkpoint's file, as a special token of the model, and build again."
            )
        return self._special[name]

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
        return arrange(
            tokens,
            self.placeholders,
            parts,
            axes=self.media.axes,
            whole=self.media.whole,
            prompt=prompt,
            among=self.among,
        )

    def _id(self, name: str) -> int:
        """Return the id of a token in the config; older configs have an `_index` field."""
        found = token_of(self.config, name)
        if found is None:
            raise GenerationError(
                f"config.json of the package has no {name!r}; expected the id of a token, by which {self._nouns} are "
                "written. Add it to the checkpoint's config.json, and build again."
            )
        return found
