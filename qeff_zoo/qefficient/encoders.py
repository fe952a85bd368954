# SPDX-License-Identifier: Apache-2.0
"""QEfficient's classes of models that read whole inputs: embeddings, classifiers, and labels of audio frames."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from qeff_zoo.contract import FEATURE_EXTRACTION, SPEECH_RECOGNITION, TEXT_CLASSIFICATION
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.plan.request import POOLINGS
from qeff_zoo.qefficient.execution import read
from qeff_zoo.qefficient.models import Model
from qeff_zoo.qefficient.processor_outputs import rows_of, to_numpy
from qeff_zoo.qefficient.recording import records_calls

from . import translation

_E = TypeVar("_E", bound="_Encoder")


class _Encoder(Model):
    """What the classes have in common whose models read whole inputs."""

    @classmethod
    def from_pretrained(
        cls: type[_E],
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        trust_remote_code: bool = False,
        **source: Any,
    ) -> _E:
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            trust_remote_code: See `QEFFAutoModelForCausalLM`.
            **source: See `QEFFAutoModelForCausalLM`.
        """
        return cls._load(pretrained_model_name_or_path, source)

    def compile(
        self,
        *,
        seq_len: int | Sequence[int] = 32,
        batch_size: int = 1,
        num_devices: int = 1,
        num_cores: int = 16,
        mxfp6_matmul: bool = False,
        target: str | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        **compiler_options: Any,
    ) -> str:
        """Build a package, or find it in the store.

        Args:
            seq_len: Tokens of a text, one length or several.
            batch_size: Texts read at a time.
            num_devices: See `QEFFAutoModelForCausalLM.compile`, also for the others.
            num_cores: Number of cores of each card.
            mxfp6_matmul: Matrices in MXFP6, on a card.
            target: Target of the build.
            compile_dir: Also copy the package there.
            **compiler_options: See `QEFFAutoModelForCausalLM.compile`.

        Returns:
            The package's folder, or the prepared one.
        """
        given = {
            "seq_len": seq_len,
            "batch_size": batch_size,
            "num_devices": num_devices,
            "num_cores": num_cores,
            "mxfp6_matmul": mxfp6_matmul,
        }
        return self._compile(target, compile_dir, given | compiler_options)

    @records_calls
    def generate(
        self,
        inputs: Mapping[str, Any],
        device_ids: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        **others: Any,
    ) -> dict[str, Any]:
        """Read texts that a tokenizer has encoded.

        Args:
            inputs: `input_ids` and `attention_mask`, (texts, tokens), of torch or numpy.
            device_ids: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            **others: QEfficient's other arguments, which change nothing here or are refused.

        Returns:
            `output` of embeddings, `logits` of a classifier: float32, (texts, …).
        """
        translation.refuse("generate", others, translation.GENERATING)
        return read(self._opened(device_ids, runtime_ai100), inputs)


class QEFFAutoModel(_Encoder):
    """A model that turns a text into a vector.

    Example:
        >>> model = QEFFAutoModel.from_pretrained("BAAI/bge-small-en-v1.5")  # doctest: +SKIP
        >>> model.compile(num_cores=16, seq_len=[32, 128])  # doctest: +SKIP
        >>> model.generate(tokenizer("a cat", return_tensors="pt"))["output"]  # doctest: +SKIP
    """

    _task = FEATURE_EXTRACTION

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        pooling: str | Callable[..., Any] | None = None,
        *,
        trust_remote_code: bool = False,
        **source: Any,
    ) -> "QEFFAutoModel":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            pooling: "mean" (or "avg"), "max", "cls" or "lasttoken" of the last hidden states, not normalized; or a
                function of torch with the arguments `last_hidden_states`, (texts, tokens, hidden), and
                `attention_mask`, which runs on the host; None for an embedding as the checkpoint defines it.
            trust_remote_code: See `QEFFAutoModelForCausalLM`.
            **source: See `QEFFAutoModelForCausalLM`.

        Raises:
            PlanError: The function has other arguments.
        """
        if pooling is None:
            return cls._load(pretrained_model_name_or_path, source)
        chosen = {"avg": "mean"}.get(pooling, pooling) if isinstance(pooling, str) else "none"
        if chosen not in POOLINGS:
            raise PlanError(
                [
                    f"`from_pretrained`: pooling is {pooling!r}; expected {' or '.join(map(repr, POOLINGS))}, or a "
                    "function. Change it."
                ]
            )
        model = cls._load(pretrained_model_name_or_path, source, pooling=chosen, normalize=False)
        if callable(pooling):
            model._pool = _checked(pooling)
        elif model._has_modules():
            model._loaded["pooling"], model._pool = "none", _named(chosen)
        return model

    def _has_modules(self) -> bool:
        """Return whether the checkpoint has modules beside a pooling, which a program would apply."""
        from qeff_zoo.checkpoint.opening import open_checkpoint
        from qeff_zoo.checkpoint.sentence_transformers.files import read_modules

        checkpoint = open_checkpoint(self._source.model, **self._source.beside)
        plain = ("Transformer", "Pooling", "Normalize", "Dropout")
        return any(module.kind not in plain for module in read_modules(checkpoint.companions))

    #: Function that pools the states of tokens on the host; None where the program pools.
    _pool: Callable[..., Any] | None = None

    @records_calls
    def generate(
        self,
        inputs: Mapping[str, Any],
        device_ids: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        **others: Any,
    ) -> dict[str, Any]:
        """Embed texts; see `QEFFAutoModelForSequenceClassification.generate`."""
        outputs = super().generate(inputs, device_ids, runtime_ai100, **others)
        if self._pool is not None:
            import torch

            name, states = outputs.popitem()
            mask = torch.zeros(states.shape[:2], dtype=torch.int64)
            for row, tokens in zip(mask, rows_of(inputs), strict=True):
                row[: len(tokens)] = 1
            pooled = self._pool(last_hidden_states=torch.from_numpy(states), attention_mask=mask)
            outputs[name] = to_numpy(pooled)
        return outputs


def _named(pooling: str) -> Callable[..., Any]:
    """Return the function of a pooling by its name."""

    def pooled(last_hidden_states: Any, attention_mask: Any) -> Any:
        from qeff_zoo.tasks.encoders.pooling import pool

        return pool(last_hidden_states, attention_mask, pooling)

    return pooled


def _checked(pooling: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pooling function after a check of its arguments."""
    expected = {"last_hidden_states", "attention_mask"}
    if not expected <= inspect.signature(pooling).parameters.keys():
        raise PlanError(
            [
                f"`from_pretrained`: pooling is {pooling!r}; expected a function with the arguments last_hidden_states "
                "and attention_mask. Change it, or give 'mean', 'max', 'cls' or 'lasttoken'."
            ]
        )
    return pooling


class QEFFAutoModelForSequenceClassification(_Encoder):
    """A model that scores labels for a text, or how well two texts belong together.

    Example:
        >>> model = QEFFAutoModelForSequenceClassification.from_pretrained(
        ...     "org/reranker"
        ... )  # doctest: +SKIP
        >>> model.compile(seq_len=128)  # doctest: +SKIP
        >>> model.generate(tokenizer("a text", return_tensors="pt"))["logits"]  # doctest: +SKIP
    """

    _task = TEXT_CLASSIFICATION


class QEFFAutoModelForCTC(_Encoder):
    """A model that labels the frames of speech, and so writes it down.

    Example:
        >>> model = QEFFAutoModelForCTC.from_pretrained(
        ...     "facebook/wav2vec2-base-960h"
        ... )  # doctest: +SKIP
        >>> model.compile(num_cores=16)  # doctest: +SKIP
        >>> model.generate(processor, samples)  # doctest: +SKIP
        ['A MAN SAID TO THE UNIVERSE SIR I EXIST']
    """

    _task = SPEECH_RECOGNITION

    def compile(self, *, seq_len: int | Sequence[int] = 480_000, **choices: Any) -> str:
        """Build a package, or find it in the store.

        Args:
            seq_len: Samples of a recording, one length or several; of models that read features, frames. What is longer
                is read in windows.
            **choices: See `QEFFAutoModel.compile`.

        Returns:
            The package's folder, or the prepared one.
        """
        return super().compile(seq_len=seq_len, **choices)

    @records_calls
    def generate(  # type: ignore[override]
        self,
        processor: Any,
        inputs: Any,
        device_ids: Sequence[int] | None = None,
        runtime_ai100: bool = True,
        **others: Any,
    ) -> list[str]:
        """Transcribe recordings.

        Args:
            processor: QEfficient's argument; the package has the checkpoint's own, which computes the same.
            inputs: Samples at the model's rate, (samples,) or (1, samples), of torch or numpy, or the path or the bytes
                of a recording; or several of those, of any length.
            device_ids: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            **others: QEfficient's other arguments, which change nothing here or are refused.

        Returns:
            The text of each.
        """
        translation.refuse("generate", others, translation.GENERATING)
        if isinstance(inputs, Mapping):
            raise GenerationError(
                f"The inputs are {sorted(inputs)!r}; expected samples or recordings, of which features are made here. "
                "Give those that the processor was called on."
            )
        whole = str, bytes, os.PathLike
        of_numbers = isinstance(inputs, list | tuple) and any(
            isinstance(one, Real) for one in inputs
        )
        given = inputs if isinstance(inputs, list | tuple) and not of_numbers else [inputs]
        recordings = [one if isinstance(one, whole) else _of_one_channel(one) for one in given]
        session = self._opened(device_ids, runtime_ai100)
        return [found.text for found in session.transcribe(recordings)]


def _of_one_channel(samples: Any) -> Any:
    """Return samples (samples,), of which torchaudio makes (1, samples); those of several channels as they are."""
    array = to_numpy(samples)
    return array[0] if array.shape[:-1] == (1,) else array
