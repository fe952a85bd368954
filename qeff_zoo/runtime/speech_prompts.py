# SPDX-License-Identifier: Apache-2.0
"""What the decoder of a speech model is begun with that is told how to write: languages in, tokens out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from qeff_zoo.errors import PackageError
from qeff_zoo.runtime.tokenizer import Tokenizer

#: Codes of the language that is spoken, and of the one that is written -> token ids.
Begins: TypeAlias = Callable[[str, str], Sequence[int]]


def find(told: Mapping[str, Any], tokenizer: Tokenizer) -> Begins:
    """Return what makes the tokens that an answer begins with.

    Args:
        told: What a recipe says of speech.
        tokenizer: Of the package.
    """

    def begins(source: str, target: str) -> Sequence[int]:
        texts = [text.format(source=source, target=target) for text in told["begins"]]
        found = {text: tokenizer.token_id(text) for text in texts}
        if missing := [text for text, token in found.items() if token is None]:
            raise PackageError(
                f"tokenizer.json has no tokens {', '.join(missing)}; expected them, as answers of this model begin "
                "with them. Build the package from a checkpoint with its own tokenizer."
            )
        return [token for text in texts if (token := found[text]) is not None]

    return begins
