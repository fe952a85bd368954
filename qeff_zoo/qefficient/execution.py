# SPDX-License-Identifier: Apache-2.0
"""Prompts and an opened package -> answers and their speed, in QEfficient's form."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo import targets
from qeff_zoo.disk import text_files
from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.processor_outputs import rows_of
from qeff_zoo.terminal.sanitize import as_is, escaping

if TYPE_CHECKING:
    from qeff_zoo.package import Package
    from qeff_zoo.runtime import TextGenerationSession
    from qeff_zoo.tasks.encoders.session import EncoderSession


@dataclass(frozen=True)
class PerfMetrics:
    """How fast it went.

    Args:
        prefill_time: Seconds to the first token of the first prompt.
        decode_perf: Generated tokens per second of decode calls.
        total_perf: Generated tokens per second of all.
        total_time: Seconds in all.
    """

    prefill_time: float
    decode_perf: float
    total_perf: float
    total_time: float


@dataclass(frozen=True)
class CloudAI100ExecInfo:
    """What came of prompts.

    Args:
        batch_size: Prompts that the package answers at a time.
        generated_texts: One per prompt.
        generated_ids: Tokens of each.
        perf_metrics: Measured speed.
    """

    batch_size: int
    generated_texts: list[str]
    generated_ids: list[list[int]]
    perf_metrics: PerfMetrics

    def __repr__(self) -> str:
        """Return the lines that QEfficient prints, which scripts search for the numbers."""
        speed = self.perf_metrics
        return (
            f"Average Prefill time a.k.a TTFT is= {speed.prefill_time:.2f} sec\n"
            f"Decode is= {speed.decode_perf:.2f} tokens/sec\n"
            f"Total is= {speed.total_perf:.2f} tokens/sec\n"
            f"Total (E2E) inference time is= {speed.total_time:.2f} sec"
        )


def execute(
    session: "TextGenerationSession",
    prompts: str | Sequence[Any],
    *,
    tokenizer: Any = None,
    stream: Any = True,
    echo: bool = False,
    chat: bool = False,
    each: Sequence[Mapping[str, Any]] = (),
    **choices: Any,
) -> CloudAI100ExecInfo:
    """Answer prompts.

    Args:
        session: Opened.
        prompts: Texts, token ids, or requests of the session.
        tokenizer: Turns texts into token ids; None for the package's own.
        stream: Whether to print prompts and answers on stdout, a single one as it grows; or a streamer of
            transformers, which gets the tokens of each answer.
        echo: Whether a streamer gets the tokens of each prompt, too.
        chat: Apply the chat template.
        each: Further options of each prompt: `adapter`, `sampling`; empty for none.
        **choices: Arguments of `TextGenerationSession.generate`.

    Raises:
        GenerationError: There are no prompts, or one cannot be answered.
    """
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise GenerationError(
            "There are no prompts in []; expected at least one. Give prompts=['Some text']."
        )
    fed = given
    if tokenizer is not None and not chat:
        fed = [tokenizer(one)["input_ids"] if isinstance(one, str) else one for one in given]
    if any(each):
        fed = [
            session.request(one, chat=chat, **choices, **own)
            for one, own in zip(fed, each, strict=True)
        ]
        chat, choices = False, {}
    if hasattr(stream, "put"):
        return _info_of(session, list(_streamed(session, fed, stream, echo, chat=chat, **choices)))
    show = printer() if stream else lambda _: None
    shown = [getattr(one, "text", None) or one for one in given]
    if alone := len(given) == 1:
        show(f"Prompt: {shown[0]}\nCompletion: ")
    growing = (lambda _, text: show(text)) if alone else None
    outputs = session.generate(fed, chat=chat, stream=growing, **choices)
    for prompt, output in zip(shown, outputs, strict=True):
        show("\n" if alone else f"Prompt: {prompt}\nCompletion: {output.text}\n")
    return _info_of(session, [(one.text, one.token_ids) for one in outputs])


def _streamed(
    session: "TextGenerationSession",
    prompts: Sequence[Any],
    streamer: Any,
    echo: bool,
    **choices: Any,
) -> Iterator[tuple[str, list[int]]]:
    """Yield text and tokens of each answer, which a streamer gets, too: of a single prompt while it grows."""
    import numpy as np

    from qeff_zoo.runtime.engine.answers import Delta, Request

    requests = [
        prompt if isinstance(prompt, Request) else session.request(prompt, **choices)
        for prompt in prompts
    ]
    whole = session.generate(requests) if len(requests) > 1 else []
    for number, request in enumerate(requests):
        if echo or getattr(streamer, "skip_prompt", False):  # else the first token is skipped
            streamer.put(np.array(request.prompt))
        text, tokens = "", list[int]()
        answer = [Delta(text=one.text, token_ids=tuple(one.token_ids)) for one in whole][number:]
        for delta in answer[:1] or session.stream(request):
            streamer.put(np.array(delta.token_ids, np.int64))
            text, tokens = text + delta.text, [*tokens, *delta.token_ids]
        streamer.end()
        yield text, tokens


def _info_of(
    session: "TextGenerationSession", outputs: Sequence[tuple[str, list[int]]]
) -> CloudAI100ExecInfo:
    """Return texts and tokens of answers, with the speed of the session's last run."""
    speed = session.metrics
    assert speed is not None
    total = speed.total_s
    return CloudAI100ExecInfo(
        batch_size=session.decoder.sizes.rows,
        generated_texts=[text for text, _ in outputs],
        generated_ids=[tokens for _, tokens in outputs],
        perf_metrics=PerfMetrics(
            prefill_time=speed.ttft_s,
            decode_perf=speed.decode_tokens_per_s,
            total_perf=speed.generated_tokens / total if total else 0.0,
            total_time=total,
        ),
    )


def read(session: "EncoderSession", inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Read texts that a tokenizer has encoded.

    Args:
        session: Opened.
        inputs: `input_ids` and, where texts are padded, `attention_mask`, (texts, tokens); of pairs `token_type_ids`.

    Returns:
        The graph's output by its name, float32, (texts, …).
    """
    import numpy as np

    rows, types = (rows_of(inputs, name) for name in ("input_ids", "token_type_ids"))
    session.read(rows)  # checks them
    size = session.sizes.batch_size
    answers = [
        session.run(rows[start : start + size], types=types[start : start + size])
        for start in range(0, len(rows), size)
    ]
    if session.has_states:  # of calls of several lengths
        longest = max(map(len, rows))
        answers = [
            np.pad(answer[:, :longest], ((0, 0), (0, max(0, longest - answer.shape[1])), (0, 0)))
            for answer in answers
        ]
    return {session.output: np.concatenate(answers)}


def prompts_of(prompt: str | Sequence[str] | None, file: str | None) -> list[str]:
    """Return the prompts of a text, in which `|` separates them, or of a file with one a line.

    Raises:
        GenerationError: There are none, or both were given, or the file cannot be read.
    """
    if (prompt is None) == (file is None):
        given_ = "neither" if prompt is None else "both"
        raise GenerationError(
            f"There is {given_} of --prompt and --prompts_txt_file_path; expected one. Give --prompt 'ONE|ANOTHER', or "
            "a file with one prompt a line."
        )
    if file is None:
        given = prompt.split("|") if isinstance(prompt, str) else list(prompt or ())
    else:
        try:
            given = text_files.lines_of(text_files.read(Path(file)))
        except (OSError, UnicodeDecodeError) as error:
            raise GenerationError(
                f"Cannot read {file!r}: {error}. Expected a text file in UTF-8, one prompt a line. Check the path."
            ) from error
    prompts = [one for one in given if one.strip()]
    if not prompts:
        raise GenerationError(
            f"There is no prompt in {file or prompt!r}; expected at least one. Give some text."
        )
    return prompts


@contextmanager
def on_devices(package: "Package", ids: Sequence[int] | None) -> Iterator[None]:
    """Open a package on cards that the user named.

    Args:
        package: To be opened.
        ids: Ids of cards; None for free ones.
    """
    from qeff_zoo.targets.qaic.cards import DEVICES_ENV

    if not ids:
        yield
        return
    if package.target not in targets.on_cards():
        warnings.warn(
            f"device_id={list(ids)!r} is left out: a package of target {package.target!r} runs on the CPU.",
            stacklevel=5,
        )
        yield
        return
    before = os.environ.get(DEVICES_ENV)
    os.environ[DEVICES_ENV] = ",".join(map(str, ids))
    try:
        yield
    finally:
        del os.environ[DEVICES_ENV]
        if before is not None:
            os.environ[DEVICES_ENV] = before


def printer() -> Callable[[str], None]:
    """Return what writes a model's text: to a file or a pipe as it is, to a terminal without what would steer it."""
    stream = escaping(sys.stdout) if sys.stdout.isatty() else as_is(sys.stdout)

    def show(text: str) -> None:
        stream.write(text)
        stream.flush()

    return show
