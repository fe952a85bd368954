# SPDX-License-Identifier: Apache-2.0
"""Prompts -> token ids: texts, conversations and passages, as a package's tokenizer and chat template write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.runtime.block_attention import Passages
from qeff_zoo.runtime.chat_template import ChatTemplate, Message
from qeff_zoo.runtime.tokenizer import Tokenizer

_HERE = "\ue000\ue001"  # where documents are in a chat; no text has these characters
#: Text, or token ids.
Prompt: TypeAlias = str | Sequence[int]


class PromptReader:
    """What reads the prompts of a session.

    Args:
        folder: The package.
        ctx_len: Tokens of a prompt and its answer at most.
    """

    def __init__(self, folder: Path, ctx_len: int) -> None:
        self.folder = folder
        self.tokenizer, self.chat_template = Tokenizer.find(folder), ChatTemplate.find(folder)
        #: Passages that requests may have; None where none may.
        self.passages: Passages | None = None
        self._ctx_len = ctx_len

    def encode(self, prompt: Prompt, *, chat: bool = False) -> list[int]:
        """Turn a prompt into token ids, as `generate` does.

        Args:
            prompt: Text, or token ids as they are.
            chat: The prompt is a user's message: apply the chat template.

        Raises:
            GenerationError: The prompt cannot be served.
        """
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if chat:
            return self.encode_chat([{"role": "user", "content": prompt}])
        return self._encode(prompt)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Turn a conversation into the token ids of a prompt for the assistant's answer.

        Args:
            messages: Each with `role` and `content`.

        Raises:
            GenerationError: The package has no chat template, or it refuses them.
            ContextLengthError: They are too long.
        """
        return self._encode(self._rendered(messages), special_tokens=False)

    def encode_parts(
        self, prompt: Prompt | Sequence[Message], documents: Sequence[Prompt]
    ) -> list[list[int]]:
        """Turn documents and what comes after them into token ids, in this order.

        What begins a text, and what a chat template writes before its last message, becomes a block too, the first.

        Args:
            prompt: Text, token ids as they are, or a conversation: documents begin the text of its last message.
            documents: Texts, or token ids.

        Raises:
            GenerationError: They cannot be served.
        """
        if self.passages is None:
            raise GenerationError(
                f"A request has {len(documents)} documents, and the session of {str(self.folder)!r} takes none; "
                "expected "
                "block attention. Open the session with block_attention=True, or serve with --block-attention."
            )
        before: list[int] = []
        if isinstance(prompt, str):
            before = self._tokenizer_for(prompt).encode("")
            after = self._encode(prompt, special_tokens=False)
        elif prompt and isinstance(prompt[0], Mapping):
            before, after = self._around(cast("Sequence[Message]", prompt))
        else:
            after = [int(token) for token in cast("Sequence[int]", prompt)]
        return [*([before] if before else []), *map(self._block, documents), after]

    def _around(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Return the tokens of a conversation before and after the documents that begin its last message."""
        *others, last = messages
        text = self._rendered([*others, {**last, "content": f"{_HERE}{last.get('content')}"}])
        if text.count(_HERE) != 1:
            raise GenerationError(
                f"The chat template writes the last message {text.count(_HERE)} times as it is; expected once, with "
                "its documents before it. Give the whole prompt as plain text, and the documents beside it."
            )
        before, _, after = text.partition(_HERE)
        return self._encode(before, special_tokens=False), self._encode(after, special_tokens=False)

    def _rendered(self, messages: Sequence[Message]) -> str:
        """Write a conversation as text, special tokens included."""
        newest = str(messages[-1].get("content")) if messages else ""
        if self.chat_template is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no chat template for {brief(newest)}; expected "
                "one from its checkpoint. Give the prompt as plain text: a base model continues it."
            )
        return self.chat_template.render(messages)

    def _block(self, block: Prompt) -> list[int]:
        """Return the tokens of a passage."""
        tokens = self._encode(block, special_tokens=False) if isinstance(block, str) else [*block]
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
        """Turn text into token ids; no more is read of one that is too long than it takes to know that."""
        tokenizer, longest = self._tokenizer_for(text), self.longest + 1
        if len(tokenizer.beginning(text, longest)) < len(text):
            raise self._too_long(f"at least {2 * longest:,}")
        return tokenizer.encode(text, special_tokens=special_tokens)

    @property
    def longest(self) -> int:
        """Tokens of a prompt at most."""
        return self._ctx_len - 1

    def _too_long(self, tokens: str, documents: int = 0) -> ContextLengthError:
        what = f"A prompt and its {documents} documents have" if documents else "A prompt has"
        return ContextLengthError(
            f"{what} {tokens} tokens; expected at most {self.longest:,}, which leaves one of ctx_len {self._ctx_len:,} "
            "to generate. Shorten it, or build the package with a larger ctx_len."
        )


def brief(text: str) -> str:
    """Quote the beginning of a text for a message."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
