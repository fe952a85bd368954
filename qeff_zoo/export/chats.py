# SPDX-License-Identifier: Apache-2.0
"""Check of a package's chat template by one rendering before the build: a warning or a refusal on failure."""

import warnings
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint import text
from qeff_zoo.errors import CheckpointError, GenerationError
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.template_sandbox import OverBudgetError

_CHATS = (
    (("user", "Hello"),),
    (("system", "Be brief."), ("user", "Hello"), ("assistant", "Yes?"), ("user", "Bye")),
)


def check(name: str, tokenizer: Any, folder: Path) -> None:
    """Warn about a chat template that fails to render a chat, and refuse one beyond the budget of a rendering.

    Args:
        name: The checkpoint's name, for messages.
        tokenizer: transformers' tokenizer.
        folder: Folder of the package, with the default template of transformers.

    Raises:
        CheckpointError: The template exceeds the budget of the package's renderer, which transformers' renderer lacks.
    """
    template = ChatTemplate.find(folder)
    fault = _fault(name, template) if template else _no_text(tokenizer.chat_template)
    if fault:
        warnings.warn(
            f"The chat template of {name!r} renders no chat: {fault} Expected a template that renders messages of a "
            "user. The package takes prompts as plain text. To chat, correct "
            f"{text.TEMPLATE} or chat_template in {text.SETTINGS}, and build again.",
            stacklevel=2,
        )


def _fault(name: str, template: ChatTemplate) -> str | None:
    """Return why a template fails to render a chat; None if it renders one."""
    fault = None
    for chat in _CHATS:
        try:
            template.render([{"role": role, "content": content} for role, content in chat])
        except GenerationError as error:
            if isinstance(error.__cause__, OverBudgetError):
                raise CheckpointError(
                    f"Cannot use the chat template of {name!r}: {text.brief(error.__cause__)} Expected one that "
                    f"renders a short chat within the budget of a package. Correct {text.TEMPLATE} or chat_template in "
                    f"{text.SETTINGS}, or remove it: then the package takes prompts as plain text."
                ) from error
            fault = fault or (text.brief(error.__cause__) if error.__cause__ else str(error))
        else:
            return None
    return fault


def _no_text(value: object) -> str | None:
    """Return why transformers' value of `chat_template` has no text; None if there is no value."""
    return f"it is {value!r}, and no text." if value else None
