# SPDX-License-Identifier: Apache-2.0
"""QEfficient's loaders: the class for a checkpoint's task, and transformers' tokenizer and processor."""

import os
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.plan.task import recipe_of
from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
from qeff_zoo.qefficient.encoders import (
    QEFFAutoModel,
    QEFFAutoModelForCTC,
    QEFFAutoModelForSequenceClassification,
)
from qeff_zoo.qefficient.models import Model
from qeff_zoo.qefficient.speech import QEFFAutoModelForSpeechSeq2Seq
from qeff_zoo.qefficient.vision import QEFFAutoModelForImageTextToText

_CLASSES: tuple[type[Model], ...] = (
    QEFFAutoModel,
    QEFFAutoModelForCTC,
    QEFFAutoModelForCausalLM,
    QEFFAutoModelForImageTextToText,
    QEFFAutoModelForSequenceClassification,
    QEFFAutoModelForSpeechSeq2Seq,
)


class QEFFCommonLoader:
    """Loader of a checkpoint by the class for its task.

    Example:
        >>> model = QEFFCommonLoader.from_pretrained("gpt2")  # doctest: +SKIP
    """

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str | os.PathLike[str], **loaded: Any
    ) -> Any:
        """Return a model of one of the classes.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            **loaded: Arguments of `from_pretrained` of the class.

        Raises:
            UnsupportedModelError: The checkpoint's task has no class of QEfficient's.
        """
        name = os.fspath(pretrained_model_name_or_path)
        chosen = class_for(recipe_of(open_checkpoint(name)).task)
        if chosen is None:
            task = recipe_of(open_checkpoint(name)).task
            raise UnsupportedModelError(
                f"{name!r} is a model for {task!r}, for which QEfficient has no class; expected one of "
                f"{', '.join(repr(class_._task) for class_ in _CLASSES)}. Use `qeff_zoo.build` and `qeff_zoo.load`."
            )
        return chosen.from_pretrained(name, **loaded)


def class_for(task: str) -> Any:
    """Return QEfficient's class for a Hub pipeline tag; None if there is none."""
    return next((class_ for class_ in _CLASSES if class_._task == task), None)


def load_hf_tokenizer(
    pretrained_model_name_or_path: str | os.PathLike[str],
    cache_dir: str | None = None,
    hf_token: str | None = None,
    padding_side: str = "right",
    **options: Any,
) -> Any:
    """Return transformers' tokenizer of a checkpoint, with a padding token.

    Args:
        pretrained_model_name_or_path: Hub id or folder.
        cache_dir: Cache of downloads.
        hf_token: Token of the Hub.
        padding_side: Side of padding tokens.
        **options: Options of `AutoTokenizer.from_pretrained`.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        os.fspath(pretrained_model_name_or_path),
        cache_dir=cache_dir,
        token=hf_token,
        padding_side=padding_side,
        **options,
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


def load_hf_processor(
    pretrained_model_name_or_path: str | os.PathLike[str],
    cache_dir: str | None = None,
    hf_token: str | None = None,
    **options: Any,
) -> Any:
    """Return transformers' processor of a checkpoint; arguments as for `load_hf_tokenizer`."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(
        os.fspath(pretrained_model_name_or_path), cache_dir=cache_dir, token=hf_token, **options
    )


def login_and_download_hf_lm(
    model_name: str | os.PathLike[str],
    hf_token: str | None = None,
    cache_dir: str | None = None,
    **options: Any,
) -> str:
    """Return the folder of a checkpoint, downloaded from the Hub unless it is a folder.

    Args:
        model_name: Hub id or folder.
        hf_token: Token of the Hub.
        cache_dir: Cache of downloads.
        **options: Options of `huggingface_hub.snapshot_download`.
    """
    if Path(model_name).is_dir():
        return os.fspath(model_name)
    from huggingface_hub import snapshot_download

    return str(
        snapshot_download(os.fspath(model_name), token=hf_token, cache_dir=cache_dir, **options)
    )
