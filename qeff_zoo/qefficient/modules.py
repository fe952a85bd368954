# SPDX-License-Identifier: Apache-2.0
"""Models of transformers in place of checkpoints: each is saved in a folder, with the tokenizer of its checkpoint."""

from tempfile import mkdtemp
from typing import Any

from qeff_zoo.errors import PlanError


def saved(model: Any) -> str:
    """Save a model of transformers in a folder of its own, and return that.

    Args:
        model: The model.

    Raises:
        PlanError: The object is no model of transformers.
    """
    if not hasattr(model, "save_pretrained"):
        raise refusal(model)
    folder = mkdtemp(prefix="qeff-model-")
    model.save_pretrained(folder)
    if model.name_or_path:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(model.name_or_path).save_pretrained(folder)
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
