# SPDX-License-Identifier: Apache-2.0
"""Prompts for a text between two others (fill in the middle), by the tokens that a family's tokenizer has for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from qeff_zoo.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class MiddleTokens:
    """Tokens of a prompt for the text between a prefix and a suffix.

    Args:
        prefix: Token before the prefix.
        suffix: Token before the suffix.
        middle: Token before the text between them; empty if the prefix comes last.
    """

    prefix: str
    suffix: str
    middle: str


#: Tokens of model families, in the order of the search.
FAMILIES = (
    MiddleTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    MiddleTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    MiddleTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    MiddleTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 -- DeepSeek Coder
    MiddleTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    MiddleTokens("[PREFIX]", "[SUFFIX]", ""),  # Codestral
)
#: Tokens before the name of a repository and before that of a file, in the order of the search.
FILES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>"),
        "file": ("<|file_sep|>",),
    }
)
#: Text before a file for a tokenizer without such a token, and the names of llama-server.
_SNIPPET, _REPOSITORY, _FILE = "\n\n--- snippet ---\n\n", "myproject\n", "filename\n"


def middle_tokens(tokenizer: Tokenizer) -> dict[str, int] | None:
    """Return the ids of a tokenizer's tokens for fill in the middle by their fields; None if it has none."""
    for family in FAMILIES:
        named = {name: text for name, text in vars(family).items() if text}
        ids = {name: tokenizer.token_id(text) for name, text in named.items()}
        if all(token is not None for token in ids.values()):
            return {name: token for name, token in ids.items() if token is not None}
    return None


def file_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of a tokenizer's tokens for repositories and files, of those that it has."""
    ids = {
        name: next((id for text in texts if (id := tokenizer.token_id(text)) is not None), None)
        for name, texts in FILES.items()
    }
    return {name: token for name, token in ids.items() if token is not None}


def files_context(tokenizer: Tokenizer, files: Sequence[tuple[str, str]]) -> list[int]:
    """Return the tokens of files before a prompt for the text between two others, as llama-server has them.

    Args:
        tokenizer: Tokenizer of the model.
        files: Names and texts; none of them is read as an added token.
    """
    known, tokens = file_tokens(tokenizer), list[int]()
    if "repository" in known:
        tokens += [known["repository"], *tokenizer.spell(_REPOSITORY)]
    for name, text in files:
        if "file" in known:
            tokens += [known["file"], *tokenizer.spell(f"{name}\n")]
        else:
            tokens += tokenizer.spell(_SNIPPET)
        tokens += tokenizer.spell(text)
    if "file" in known:
        tokens += [known["file"], *tokenizer.spell(_FILE)]
    return tokens


def middle_prompt(
    tokenizer: Tokenizer, prefix: str, suffix: str, begun: str = "", context: Sequence[int] = ()
) -> list[int] | None:
    """Return the prompt for the text between two others; None if the tokenizer has no tokens for it.

    Args:
        tokenizer: Tokenizer of the model.
        prefix: Text before; none of it is read as an added token.
        suffix: Text after, like `prefix`.
        begun: Further text before, with tokens of its own.
        context: Tokens before those of the texts.
    """
    tokens = middle_tokens(tokenizer)
    if tokens is None:
        return None
    before = [
        tokens["prefix"],
        *tokenizer.spell(prefix),
        *(tokenizer.spell(begun) if begun else ()),
    ]
    after = [tokens["suffix"], *tokenizer.spell(suffix)]
    # Tokens that the tokenizer adds to any text, such as BOS; EOS would end the prompt.
    opening = [*tokenizer.encode("")[:1], *context]
    if "middle" in tokens:
        return [*opening, *before, *after, tokens["middle"]]
    return [*opening, *after, *before]
