# SPDX-License-Identifier: Apache-2.0
"""Models of transformers in place of checkpoints: each is saved in a folder, with the tokenizer of its checkpoint."""

from tempfile import mkdtemp
from typing import Any

from qeff_zoo.errors import PlanError


def saved(model: Any, tokenizer: Any = None) -> str:
    """Save a model of transformers in a folder of its own, and return that.

    Args:
        model: The model.
        tokenizer: Hub id or folder of the tokenizer, for a model without the name of its checkpoint.

    Raises:
        PlanError: The object is no model of transformers.
    """
    if not hasattr(model, "save_pretrained"):
        raise refusal(model)
    folder = mkdtemp(prefix="qeff-model-")
    model.save_pretrained(folder)
    if name := model.name_or_path or tokenizer:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(name).save_pretrained(folder)
    return folder


def refusal(model: object) -> PlanError:
    """Return the error for an object in place of a checkpoint.

    Args:
        model: The object.
    """
    return PlanError(
        [
            f"A model of class {type(model).__name__!r} was given, expected its Hub id or folder: weights are read "
            "from its checkpoint. Call save_pretrained(FOLDER) on it, and give the folder to from_pretrained."
        ]
    )
