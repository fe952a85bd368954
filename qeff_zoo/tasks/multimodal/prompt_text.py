# SPDX-License-Identifier: Apache-2.0
"""Text of prompts with images or audio, changed as the checkpoint's processor changes it before tokenization."""

import re
from itertools import chain

from qeff_zoo.recipe_media import Media
from qeff_zoo.runtime.text.chat_template import Message
from qeff_zoo.tasks.multimodal.media_tokens import MediaTokens
from qeff_zoo.tasks.multimodal.prompt_settings import TokenNames


class PromptText:
    """Changes of a prompt's text.

    Args:
        names: Tokens of the names in the recipe, with the package's tokenizer.
        media: Declaration of the encoder in the package's manifest.
        tokens: Markers of the prompts.
    """

    def __init__(self, names: TokenNames, media: Media, tokens: MediaTokens) -> None:
        self._names, self._media, self._tokens = names, media, tokens
        self._settings = names.settings
        #: Text around markers that need spacing in a prompt.
        self.spaced = {tokens.marker: media.spaced} if media.spaced else {}

    def opened(self, text: str) -> str:
        """Return a prompt with the text that transformers' processor adds before every prompt."""
        opening = self._settings.opening
        if not self._settings.opening_follows_images:
            return text if text.startswith(opening) else opening + text
        rest, marker = text, self._settings.image_token
        while marker and rest.startswith(marker):
            rest = rest.removeprefix(marker)
        leading = text[: len(text) - len(rest)]
        return text if opening in text else leading + opening + rest

    def adds_special_tokens(self, chat: str) -> bool:
        """Return whether a rendered chat gets the tokenizer's special tokens, as all but those that have BOS."""
        begin = self._settings.special.get("bos_token")
        begun = bool(begin and chat.startswith(begin))
        return self._settings.chats_like_prompts and not begun

    def in_text(self, message: Message) -> Message:
        """Return a message with markers in its text, for a template that renders text alone."""
        content = message.get("content")
        if not isinstance(content, list):
            return message
        parts = (part.get("text", f"{self._mark}\n") for part in content)
        return {**message, "content": "".join(parts)}

    def images_first(self, text: str) -> str:
        """Return a rendered chat with its markers before all text, if the model's processor puts images there."""
        if not self._media.before_text:
            return text
        mark = self._mark
        if not mark:
            return text
        rest = text.replace(f"{mark}\n", "").replace(mark, "")
        return mark * text.count(mark) + self._media.before_text + rest

    @property
    def _mark(self) -> str:
        """Text of a marker, also of one that is a token; empty without a tokenizer."""
        tokenizer = self._names.tokenizer
        return self._tokens.mark or (tokenizer.name(self._tokens.marker) if tokenizer else "")

    def marked(self, text: str) -> str:
        """Return a prompt whose markers are tokens, with the spaces around them."""
        if (tokenizer := self._names.tokenizer) is None:
            return text
        if self._tokens.mark:
            text = text.replace(self._tokens.mark, tokenizer.name(self._tokens.marker))
        for marker, form in self.spaced.items():
            shown = tokenizer.name(marker)
            before_words = r"(?=[^\s<])" if form.endswith(" ") else ""
            text = form.format(shown).join(re.split(re.escape(shown) + before_words, text))
        return text

    def tokens_of(self, prompt: str) -> list[int] | None:
        """Return the tokens of a prompt whose text after the last image has a format; None for other prompts."""
        form, tokenizer = self._media.text, self._names.tokenizer
        if not form or tokenizer is None:
            return None
        placeholder, encode = self._tokens.placeholder, self._names.encode
        mark = self._tokens.mark or tokenizer.piece(placeholder).strip()
        *before, text = prompt.split(mark) if mark else [prompt]
        if not before:
            return None
        if encode(mark) == [placeholder]:
            return encode(mark.join([*before, form.format(text)]))
        # The mark is no special token, or none at all: texts are tokenized apart, since they would change next to it.
        parts = ([*encode(part), placeholder] for part in before)
        return [*chain.from_iterable(parts), *encode(form.format(text))]
