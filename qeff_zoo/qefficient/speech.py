# SPDX-License-Identifier: Apache-2.0
"""QEfficient's class of models that write down speech token by token."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo.contract import SPEECH_SEQ2SEQ
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, PerfMetrics, printer
from qeff_zoo.qefficient.models import Model
from qeff_zoo.qefficient.processor_outputs import to_numpy
from qeff_zoo.qefficient.recording import records_calls

from . import translation


class QEFFAutoModelForSpeechSeq2Seq(Model):
    """A model that writes down speech, or translates it.

    Example:
        >>> model = QEFFAutoModelForSpeechSeq2Seq.from_pretrained(
        ...     "openai/whisper-tiny"
        ... )  # doctest: +SKIP
        >>> model.compile(num_cores=16, batch_size=1, ctx_len=448)  # doctest: +SKIP
        >>> inputs = processor(samples, sampling_rate=16_000, return_tensors="pt")  # doctest: +SKIP
        >>> model.generate(inputs=inputs, generation_len=100).generated_texts  # doctest: +SKIP
        ['A man said to the universe, Sir, I exist.']
    """

    _task = SPEECH_SEQ2SEQ

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **source: Any
    ) -> "QEFFAutoModelForSpeechSeq2Seq":
        """Look at a checkpoint; nothing large is read.

        Args:
            pretrained_model_name_or_path: Hub id or folder.
            **source: See `QEFFAutoModelForCausalLM`.

        Raises:
            ZooError: See `QEFFAutoModelForCausalLM`.
        """
        return cls._load(pretrained_model_name_or_path, source)

    def compile(
        self,
        *,
        prefill_seq_len: int | None = None,
        encoder_ctx_len: int | None = None,
        ctx_len: int = 150,
        batch_size: int = 1,
        num_devices: int = 1,
        num_cores: int = 16,
        mxfp6_matmul: bool = False,
        mxint8_kv_cache: bool = False,
        target: str | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        **compiler_options: Any,
    ) -> str:
        """Build a package, or find it in the store.

        Args:
            prefill_seq_len: Tokens that begin a text, by one call; QEfficient's 1 gives the same answers.
            encoder_ctx_len: Positions of an audio window: the model's own, or None.
            ctx_len: Tokens of a window, those that it is begun with included.
            batch_size: Windows at a time.
            num_devices: See `QEFFAutoModelForCausalLM.compile`, also for the others.
            num_cores: Number of cores of each card.
            mxfp6_matmul: Matrices in MXFP6, on a card.
            mxint8_kv_cache: States in MXINT8, on a card.
            target: Target of the build.
            compile_dir: Also copy the package there.
            **compiler_options: See `QEFFAutoModelForCausalLM.compile`.

        Returns:
            The package's folder.
        """
        config = self._opened_checkpoint().config
        positions = config.get("max_source_positions")  # None for audio of any length
        if encoder_ctx_len not in (None, positions):
            raise PlanError(
                [
                    f"`compile`: encoder_ctx_len is {encoder_ctx_len!r}, and a window of this model has {positions} "
                    "positions. Leave it out."
                ]
            )
        given = {
            "prefill_seq_len": prefill_seq_len,
            "ctx_len": ctx_len,
            "batch_size": batch_size,
            "num_devices": num_devices,
            "num_cores": num_cores,
            "mxfp6_matmul": mxfp6_matmul,
            "mxint8_kv_cache": mxint8_kv_cache,
        }
        return self._compile(target, compile_dir, given | compiler_options)

    @records_calls
    def generate(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | Any,
        generation_len: int | None = None,
        streamer: Any = None,
        device_ids: Sequence[int] | None = None,
        *,
        runtime_ai100: bool = True,
        choices: Any = None,
        **others: Any,
    ) -> CloudAI100ExecInfo:
        """Transcribe recordings.

        Args:
            inputs: Output of transformers' processor of the checkpoint, of torch or numpy: `input_features`, for
                Whisper (windows, bins, frames), or `input_values`, and their `attention_mask`; or recordings of any
                length for `SpeechSeq2SeqSession.transcribe`.
            generation_len: Tokens of a window at most; None for as many as fit.
            streamer: A streamer of transformers, which gets the tokens of each segment as it ends; any other value to
                print its text.
            device_ids: Cards to run on; None for those that are free.
            runtime_ai100: False to insist on the CPU.
            choices: A `TranscriptionOptions` of `qeff_zoo.sessions`: language, task, times and more.
            **others: QEfficient's other arguments, which change nothing here or are refused.

        Raises:
            ZooError: The model is not compiled, or a recording is unreadable.
        """
        import numpy as np

        from qeff_zoo.tasks.speech.transcription_options import TranscriptionOptions

        translation.refuse("generate", others, translation.GENERATING)
        session = self._opened(device_ids, runtime_ai100)
        arguments: dict[str, Any] = {"choices": choices or TranscriptionOptions()}
        arguments |= {} if generation_len is None else {"generation_len": generation_len}
        show = printer()
        arguments |= {} if streamer is None else {"listen": lambda _, one: show(f"{one.text}\n")}
        if hasattr(streamer, "put"):
            arguments["listen"] = lambda _, one: streamer.put(np.array(one.tokens))
        begun = time.perf_counter()
        if isinstance(inputs, Mapping):
            if (name := session.input_name) not in inputs:
                raise GenerationError(
                    f"The inputs are {sorted(inputs)!r}; expected {name}, as a processor returns them. Call it on the "
                    "samples."
                )
            recordings = to_numpy(inputs[name]).astype(np.float32)
            mask = to_numpy(inputs.get("attention_mask", np.ones(recordings.shape[:2])))
            features = (
                [
                    recording[: int(there.sum())]
                    for recording, there in zip(recordings, mask, strict=True)
                ]
                if session.sources.any_length
                else [recording.T for recording in recordings]
            )
            outputs = session.transcribe_features(features, **arguments)
        else:
            outputs = session.transcribe(inputs, **arguments)
        seconds = time.perf_counter() - begun
        if hasattr(streamer, "end"):
            streamer.end()
        ids = [[token for segment in each.segments for token in segment.tokens] for each in outputs]
        speed, timings = sum(map(len, ids)) / seconds, session.timings
        return CloudAI100ExecInfo(
            batch_size=session.decoder.sizes.rows,
            generated_texts=[output.text for output in outputs],
            generated_ids=ids,
            perf_metrics=PerfMetrics(
                prefill_time=(timings.first or timings.begun) - timings.begun,
                decode_perf=speed,
                total_perf=speed,
                total_time=seconds,
            ),
        )
