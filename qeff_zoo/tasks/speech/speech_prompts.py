# SPDX-License-Identifier: Apache-2.0
"""Decoder prompts of speech models with a language setting: languages in, tokens out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from qeff_zoo.errors import PackageError
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.tokenizer import Tokenizer

#: Function from the codes of the spoken and of the written language to token ids.
Begins: TypeAlias = Callable[[str, str], Sequence[int]]


def find(folder: Path, settings: Mapping[str, Any], tokenizer: Tokenizer) -> Begins:
    """Return the function that makes the first tokens of the decoder.

    Args:
        folder: The package.
        settings: Declaration of speech in the recipe.
        tokenizer: Tokenizer of the package.

    Raises:
        PackageError: The chat template is missing, for a model that has one.
    """
    given = settings.get("begins")
    return _by_tokens(given, tokenizer) if given else _by_template(folder, tokenizer)


def _by_template(folder: Path, tokenizer: Tokenizer) -> Begins:
    template = ChatTemplate.find(folder)
    if template is None:
        raise PackageError(
            f"Package {str(folder)!r} has no chat template; expected one, as answers of this model begin as it writes. "
            "Build the package from a checkpoint with its own."
        )

    def begins(source: str, target: str) -> Sequence[int]:
        languages = {"source_language": source, "target_language": target}
        content = [{"type": "audio"}, {"type": "text", **languages, "punctuation": True}]
        text = template.render([{"role": "user", "content": content}])
        return tokenizer.encode(text, special_tokens=False)

    return begins


def _by_tokens(given: Sequence[str], tokenizer: Tokenizer) -> Begins:
    def begins(source: str, target: str) -> Sequence[int]:
        texts = [text.format(source=source, target=target) for text in given]
        ids = {text: tokenizer.token_id(text) for text in texts}
        if missing := [text for text, token in ids.items() if token is None]:
            raise PackageError(
                f"tokenizer.json has no tokens {', '.join(missing)}; expected them, as answers of this model begin "
                "with them. Build the package from a checkpoint with its own tokenizer."
            )
        return [token for text in texts if (token := ids[text]) is not None]

    return begins
