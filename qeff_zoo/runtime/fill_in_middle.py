# SPDX-License-Identifier: Apache-2.0
"""Prompts for a text between two others (fill in the middle), by the tokens that a family's tokenizer has for them."""

from dataclasses import dataclass

from qeff_zoo.runtime.tokenizer import Tokenizer


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


def middle_tokens(tokenizer: Tokenizer) -> dict[str, int] | None:
    """Return the ids of a tokenizer's tokens for fill in the middle by their fields; None if it has none."""
    for family in FAMILIES:
        named = {name: text for name, text in vars(family).items() if text}
        found = {name: tokenizer.token_id(text) for name, text in named.items()}
        if all(token is not None for token in found.values()):
            return {name: token for name, token in found.items() if token is not None}
    return None


def middle_prompt(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int] | None:
    """Return the prompt for the text between two others; None if the tokenizer has no tokens for it.

    Args:
        tokenizer: Tokenizer of the model.
        prefix: Text before; none of it is read as an added token.
        suffix: Text after, like `prefix`.
    """
    tokens = middle_tokens(tokenizer)
    if tokens is None:
        return None
    before = [tokens["prefix"], *tokenizer.spell(prefix)]
    after = [tokens["suffix"], *tokenizer.spell(suffix)]
    # Tokens that the tokenizer adds to any text, such as BOS; EOS would end the prompt.
    begun = tokenizer.encode("")[:1]
    if "middle" in tokens:
        return [*begun, *before, *after, tokens["middle"]]
    return [*begun, *after, *before]
