# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids: texts, conversations and documents, by a package's tokenizer and chat template."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.runtime.caches.block_attention import DocumentCache
from qeff_zoo.runtime.text.chat_template import USUAL_CHAT, ChatOptions, ChatTemplate, Message
from qeff_zoo.runtime.text.tokenizer import Tokenizer

_HERE = "\ue000\ue001"  # where documents are in a chat; no text has these characters
#: Methods that encode a prompt.
_PARTS = ("encode", "encode_chat", "longest", "_adds_special_tokens", "_encode", "_rendered")
#: Text, or token ids.
Prompt: TypeAlias = str | Sequence[int]


class PromptReader:
    """Tokenization of a session's prompts.

    Args:
        folder: Folder of the package.
        ctx_len: Maximum number of tokens in a prompt and its output.
    """

    def __init__(self, folder: Path, ctx_len: int) -> None:
        self.folder = folder
        self.tokenizer, self.chat_template = Tokenizer.find(folder), ChatTemplate.find(folder)
        #: Documents of block attention; None if requests may have none.
        self.document_cache: DocumentCache | None = None
        self._ctx_len = ctx_len

    def encode(self, prompt: Prompt, *, chat: bool | ChatOptions = False) -> list[int]:
        """Return the token ids of a prompt, as `generate` does.

        Args:
            prompt: Text, or token ids, which are returned unchanged.
            chat: Whether the prompt is a user message, to which the chat template applies; or options of the template.

        Raises:
            GenerationError: If the prompt is invalid.
        """
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if chat:
            return self.encode_chat([{"role": "user", "content": prompt}], options_of(chat))
        return self._encode(prompt)

    def encode_chat(
        self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT
    ) -> list[int]:
        """Return the token ids of a conversation as a prompt, by default for the assistant's reply.

        Args:
            messages: Messages, each with `role` and `content`.
            options: Options of the chat template.

        Raises:
            GenerationError: If the package has no chat template, or the template rejects the messages.
            ContextLengthError: If the conversation is too long.
        """
        text = self._rendered(messages, options)
        return self._encode(text, special_tokens=self._adds_special_tokens(text))

    def encoding_apart(
        self, prompt: str | Sequence[Message], options: ChatOptions = USUAL_CHAT
    ) -> "partial[list[int]] | None":
        """Return a call that encodes a text, or a conversation, in another process.

        None if a session has its own way to encode prompts, such as one that places images in them.
        """
        own = any(getattr(type(self), name) is not getattr(PromptReader, name) for name in _PARTS)
        if own or self.tokenizer is None:
            return None
        return partial(_encode_in, self.folder, self._ctx_len, prompt, options)

    def render_chat(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        """Return a conversation as the text of its prompt; see `encode_chat`."""
        return self._rendered(messages, options)

    def _adds_special_tokens(self, chat: str) -> bool:
        """Return whether a rendered conversation gets the tokenizer's special tokens."""
        return False

    def encode_parts(
        self,
        prompt: Prompt | Sequence[Message],
        documents: Sequence[Prompt],
        options: ChatOptions = USUAL_CHAT,
    ) -> list[list[int]]:
        """Turn documents and what comes after them into token ids, in this order.

        Tokens that begin a text, and those that a chat template writes before its last message, become the first
        block.

        Args:
            prompt: Text, token ids as they are, or a conversation: documents begin the text of its last message.
            documents: Texts, or token ids.
            options: Options of the chat template, for a conversation.

        Raises:
            GenerationError: If blocks or prompt are invalid.
        """
        if self.document_cache is None:
            raise GenerationError(
                f"A request has {len(documents)} documents, and the session of {str(self.folder)!r} takes none; "
                "expected "
                "block attention. Open the session with block_attention=True, or serve with --block-attention."
            )
        before: list[int] = []
        if isinstance(prompt, str):
            before = self._tokenizer_for(prompt).encode("")
            after = self._encode(prompt, special_tokens=False)
        elif len(prompt) and isinstance(prompt[0], Mapping):
            before, after = self._around(cast("Sequence[Message]", prompt), options)
        else:
            after = [int(token) for token in cast("Sequence[int]", prompt)]
        return [*([before] if before else []), *map(self._block, documents), after]

    def _around(
        self, messages: Sequence[Message], options: ChatOptions
    ) -> tuple[list[int], list[int]]:
        """Return the tokens of a conversation before and after the documents that begin its last message."""
        *others, last = messages
        content = last.get("content") or ""
        if isinstance(content, list):
            marked: Any = [{"type": "text", "text": _HERE}, *content]
        else:
            marked = f"{_HERE}{content}"
        text = self._rendered([*others, {**last, "content": marked}], options)
        if text.count(_HERE) != 1:
            raise GenerationError(
                f"The chat template writes the last message {text.count(_HERE)} times as it is; expected once, with "
                "its documents before it. Give the whole prompt as plain text, and the documents beside it."
            )
        before, _, after = text.partition(_HERE)
        first = self._encode(before, special_tokens=self._adds_special_tokens(text))
        return first, self._encode(after, special_tokens=False)

    def _rendered(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        """Return a conversation as text, including special tokens."""
        newest = str(messages[-1].get("content") or "") if messages else ""
        if self.chat_template is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no chat template for {brief(newest)}; expected "
                "one from its checkpoint. Give the prompt as plain text: a base model continues it."
            )
        return self.chat_template.render(messages, options)

    def _block(self, block: Prompt) -> list[int]:
        """Return the tokens of a document."""
        tokens = (
            self._encode(block, special_tokens=False)
            if isinstance(block, str)
            else [*map(int, block)]
        )
        if not tokens:
            raise GenerationError(
                f"The block {block!r} has no tokens; expected at least one. Leave it out."
            )
        return tokens

    def _tokenizer_for(self, text: str) -> Tokenizer:
        if self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json and cannot take the text "
                f"{brief(text)}; expected token ids. Give a list of them."
            )
        return self.tokenizer

    def _encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; one that is too long is tokenized only as far as needed to reject it."""
        tokenizer, longest = self._tokenizer_for(text), self.longest + 1
        if len(tokenizer.beginning(text, longest)) < len(text):
            raise self._too_long(f"at least {2 * longest:,}")
        return tokenizer.encode(text, special_tokens=special_tokens)

    @property
    def longest(self) -> int:
        """Maximum number of tokens in a prompt."""
        return self._ctx_len - 1

    def _too_long(self, tokens: str, documents: int = 0) -> ContextLengthError:
        what = f"A prompt and its {documents} documents have" if documents else "A prompt has"
        return ContextLengthError(
            f"{what} {tokens} tokens; expected at most {self.longest:,}, which leaves one of ctx_len {self._ctx_len:,} "
            "to generate. Shorten it, or build the package with a larger ctx_len."
        )


@lru_cache(4)
def _reader_of(folder: Path, ctx_len: int) -> PromptReader:
    return PromptReader(folder, ctx_len)


def _encode_in(
    folder: Path, ctx_len: int, prompt: str | Sequence[Message], options: ChatOptions
) -> list[int]:
    """Return the tokens of a text or a conversation, for the package of a folder."""
    reader = _reader_of(folder, ctx_len)
    if isinstance(prompt, str):
        return reader.encode(prompt)
    return reader.encode_chat(prompt, options)


def options_of(chat: bool | ChatOptions) -> ChatOptions:
    """Return the options of a chat template, the usual ones unless they are given."""
    return chat if isinstance(chat, ChatOptions) else USUAL_CHAT


def brief(text: str) -> str:
    """Return the beginning of a text in quotes, for a message."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
