# SPDX-License-Identifier: Apache-2.0
"""Speed of a package: sizes in, figures and plots out, each case in its own process; see `qeff_zoo.bench.case`."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, overload

from qeff_zoo.contract import IMAGE_TO_TEXT, NAMES, find
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package

if TYPE_CHECKING:
    from qeff_zoo.runtime.engine.speculation import Own

_PROMPT_LEN, _GENERATION_LEN = 128, 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to measure.

    Args:
        batch_size: Requests at a time.
        prompt_len: Tokens of each prompt.
        generation_len: Tokens to generate for each.
        threads: CPU threads that compute one operator; None for one per physical core.
        draft: Draft: "lookup", "heads", or the folder of a package; None for none.
        images: Files of the images of each prompt, whose tokens are counted beside `prompt_len`; without any, a
            package that reads images is shown one of noise. Where text is written of an image alone, its prompt is
            how that begins.
        audio: The same of recordings, of a package that accepts audio.
    """

    batch_size: int
    prompt_len: int
    generation_len: int
    threads: int | None
    draft: str | None = None
    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Figures(Case):
    """What was measured: medians over the runs.

    Args:
        ttft_s: Seconds until a request has its first token, on average over the batch; images and recordings are
            prepared and encoded in that time.
        encode_s: Seconds to encode the images or recordings of a prompt; None of packages that take neither.
        image_tokens: Tokens of a prompt that are of images.
        audio_tokens: The same of recordings.
        prefill_tokens_per_s: Prompt tokens, divided by the time of prefill calls.
        decode_tokens_per_s: Generated tokens but the first of each request, divided by the rest of the time; None where
            each request has only one.
        e2e_tokens_per_s: Generated tokens, divided by the whole time.
        peak_rss_bytes: Highest resident set of the case's process, mapped weights included.
        drafted_tokens: Tokens that were drafted and checked.
        accepted_tokens: Number of accepted ones among them.
    """

    ttft_s: float
    encode_s: float | None
    image_tokens: int
    audio_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    e2e_tokens_per_s: float
    peak_rss_bytes: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, kw_only=True)
class SpeechCase:
    """What to measure of a package that writes down speech.

    Args:
        batch_size: Recordings at a time.
        generation_len: Tokens of a window at most; None for as many as the model writes, and of one that labels frames.
        threads: See `Case`.
        language: Spoken language; None to let the package detect it, or if it has a single language.
        audio: File of the recording, which all of a batch are; None for noise, of which no two are alike. That fills a
            window, and has 30 seconds at most.
    """

    batch_size: int
    generation_len: int | None
    threads: int | None
    language: str | None = None
    audio: str | None = None


@dataclass(frozen=True, kw_only=True)
class SpeechFigures(SpeechCase):
    """What was measured: medians over the runs.

    Args:
        audio_s: Seconds of a recording.
        ttft_s: Seconds until all of a batch have their first token: recordings are read, the first window of each is
            encoded, and its prompt run. None of a package that labels frames, as the next two.
        generated_tokens: All that were written, those that end a window among them.
        decode_tokens_per_s: Decoded tokens divided by the time of decoding and sampling.
        total_s: Seconds until all of a batch are written down.
        real_time_factor: Transcription time divided by the duration of all recordings.
        peak_rss_bytes: See `Figures`.
    """

    audio_s: float
    ttft_s: float | None = None
    generated_tokens: int | None = None
    decode_tokens_per_s: float | None = None
    total_s: float
    real_time_factor: float
    peak_rss_bytes: int


def plan(
    package: Package,
    *,
    prompt_lens: Sequence[int] = (),
    generation_len: int | None = None,
    batch_sizes: Sequence[int] = (),
    threads: int | None = None,
    spread: bool = False,
    draft: "Package | Own | None" = None,
    images: Sequence[str] = (),
    audio: Sequence[str] = (),
) -> list[Case]:
    """List the cases of a package: every batch size with every prompt length.

    Args:
        package: Package for text generation.
        prompt_lens: Left out, 128 or what the context has room for.
        generation_len: Left out, 64 or what the context has room for.
        batch_sizes: Left out, one and all rows of the package.
        threads: CPU threads; None for one per physical core.
        spread: Sizes that are left out cover the context, and the rows, by doubling.
        draft: Draft of speculative decoding.
        images: Files of images for each prompt.
        audio: Files of recordings for each prompt.

    Raises:
        GenerationError: The package cannot be measured, or not with these sizes; every reason is given.
    """
    from qeff_zoo.runtime.sizes import DecoderSizes

    _check(package, images, audio)
    if package.task == IMAGE_TO_TEXT:
        prompt_lens = prompt_lens or [1]
    task = find(package.task)
    shown = task.before and task.reads == "text" and "encoder" not in task.parts
    sizes = DecoderSizes.read(package.programs[0].specializations)
    new = generation_len
    if new is None:
        new = max(1, min(_GENERATION_LEN, sizes.ctx_len // (4 if shown else 2)))
    room = sizes.encoder_ctx_len or sizes.ctx_len - new
    if shown:  # images and audio have most of these
        room //= 3
    if not prompt_lens:
        prompt_lens = _doubled(room) if spread else [max(1, min(_PROMPT_LEN, room))]
    if not batch_sizes:
        batch_sizes = _doubled(sizes.rows) if spread else sorted({1, sizes.rows})
    drafts = str(draft.path.absolute()) if isinstance(draft, Package) else draft
    cases = [
        Case(
            batch_size=batch,
            prompt_len=length,
            generation_len=new,
            threads=threads,
            draft=drafts,
            images=tuple(images),
            audio=tuple(audio),
        )
        for batch, length in product(batch_sizes, prompt_lens)
    ]
    problems = {problem: None for case in cases for problem in _problems(case, sizes)}
    if problems:
        raise GenerationError("\n".join(problems))
    return cases


def _check(package: Package, images: Sequence[str], audio: Sequence[str]) -> None:
    """Refuse a package that has no prompts, and what its prompts cannot have."""
    measured = [name for name in NAMES if find(name).commands.bench]
    if package.task not in measured:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}; expected "
            f"{' or '.join(map(repr, measured))}, whose speed is measured. Measure such a package."
        )
    commands = find(package.task).commands
    if commands.bench == "speech":
        raise GenerationError(
            f"Package {str(package.path)!r} writes down speech, and has no prompts; expected another. Use plan_speech."
        )
    for name, files in (("image", images), ("audio", audio)):
        if files and name not in commands.bench_options:
            raise GenerationError(
                f"--{name} does not apply to {package.task}, which reads none; expected none. Leave it out."
            )
    if package.task == IMAGE_TO_TEXT and len(images) > 1:
        raise GenerationError(
            f"There are {len(images)} images, and text is written of one; expected one. Give --image once."
        )


def plan_speech(
    package: Package,
    *,
    batch_sizes: Sequence[int] = (),
    generation_len: int | None = None,
    threads: int | None = None,
    language: str | None = None,
    audio: Sequence[str] = (),
) -> list[SpeechCase]:
    """List the cases of a package that writes down speech: every batch size.

    Args:
        package: Package of a task of `SPEECH`.
        batch_sizes: Left out, one and all rows of the package.
        generation_len: See `SpeechCase`, also for the next two.
        threads: CPU threads.
        language: Spoken language.
        audio: File of a recording; nothing for noise.

    Raises:
        GenerationError: The package cannot be measured with these sizes, or there are several recordings.
        MediaError: The recording cannot be read.
    """
    from qeff_zoo.media.audio import read_audio
    from qeff_zoo.media.features import load_features
    from qeff_zoo.runtime.sizes import DecoderSizes, EncoderSizes

    if len(audio) > 1:
        raise GenerationError(
            f"There are {len(audio)} recordings, and a batch is of one; expected one. Give --audio once."
        )
    for path in audio:
        read_audio(path, load_features(package.path).rate)
    given = package.programs[0].specializations
    writes = "generation_len" in find(package.task).commands.bench_options
    rows = DecoderSizes.read(given).rows if writes else EncoderSizes.read(given).batch_size
    cases = [
        SpeechCase(
            batch_size=batch,
            generation_len=generation_len,
            threads=threads,
            language=language,
            audio=next(iter(audio), None),
        )
        for batch in batch_sizes or sorted({1, rows})
    ]
    if problems := {problem: None for case in cases for problem in _out_of_bounds(case, rows)}:
        raise GenerationError("\n".join(problems))
    return cases


def _doubled(most: int) -> list[int]:
    """Return `most`, and up to three times half of it."""
    return sorted({max(1, most >> halvings) for halvings in range(4)})


def _problems(case: Case, sizes: Any) -> list[str]:
    """List the reasons why a case cannot run."""
    problems = [*_out_of_bounds(case, sizes.rows)]
    if sizes.encoder_ctx_len:
        problems += _misfits(case, sizes)
    elif case.prompt_len + case.generation_len > sizes.ctx_len:
        problems.append(
            f"A prompt of {case.prompt_len:,} and {case.generation_len:,} new tokens do not fit; expected at most the "
            f"{sizes.ctx_len:,} of ctx_len together. Change --prompt-len or --generation-len, or build with a larger "
            "--ctx-len."
        )
    return problems


def _out_of_bounds(case: Case | SpeechCase, rows: int) -> Iterator[str]:
    """Return the sizes that are below 1, or above the package's number of slots."""
    for name in ("batch_size", "prompt_len", "generation_len", "threads"):
        value = getattr(case, name, None)
        if value is not None and value < 1:
            yield (
                f"Cannot measure {name} {value}; expected at least 1. Change --{name.replace('_', '-')}."
            )
    if case.batch_size > rows:
        yield (
            f"A batch of {case.batch_size} is more than the package has rows; expected at most {rows}. Change "
            "--batch-size, or build with a larger --batch-size or --full-batch-size."
        )


def _misfits(case: Case, sizes: Any) -> Iterator[str]:
    """Return what is too long for disaggregated packages, in which an answer begins with a token."""
    for name, most, size in (
        ("prompt_len", sizes.encoder_ctx_len, "seq_lens"),
        ("generation_len", sizes.ctx_len - 1, "ctx_len"),
    ):
        if getattr(case, name) > most:
            yield (
                f"A {name} of {getattr(case, name):,} does not fit; expected at most {most:,}, by {size} of the "
                f"package. Change --{name.replace('_', '-')}, or build with a larger --{size.replace('_', '-')}."
            )


@overload
def run(
    package: Package,
    cases: Sequence[Case],
    *,
    repeat: int = ...,
    progress: Callable[[int], None] = ...,
) -> list[Figures]: ...
@overload
def run(
    package: Package,
    cases: Sequence[SpeechCase],
    *,
    repeat: int = ...,
    progress: Callable[[int], None] = ...,
) -> list[SpeechFigures]: ...
def run(
    package: Package,
    cases: Sequence[Case] | Sequence[SpeechCase],
    *,
    repeat: int = 3,
    progress: Callable[[int], None] = lambda done: None,
) -> Any:
    """Measure cases, one after the other, each in a process of its own.

    Args:
        package: Package of `plan` or `plan_speech`.
        cases: Result of `plan` or `plan_speech`.
        repeat: Runs that count.
        progress: Callback for every case.

    Raises:
        GenerationError: A case fails.

    Example:
        >>> package = qeff_zoo.api.find_package("my-package")  # doctest: +SKIP
        >>> figures = bench.run(package, bench.plan(package))  # doctest: +SKIP
        >>> figures[0].decode_tokens_per_s  # doctest: +SKIP
    """
    if repeat < 1:
        raise GenerationError(
            f"Cannot measure {repeat} runs; expected at least 1. Change --repeat."
        )
    figures = []
    for case in cases:
        figures.append(_in_a_process(package, case, repeat))
        progress(1)
    return figures


def _in_a_process(
    package: Package, case: Case | SpeechCase, repeat: int
) -> Figures | SpeechFigures:
    job = {"package": str(package.path.absolute()), "repeat": repeat, "case": asdict(case)}
    command = [sys.executable, "-m", "qeff_zoo.bench.case", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise GenerationError(
            f"Measuring {package.name!r} with {asdict(case)} ended with {done.returncode}: {message} Expected figures. "
            "Try a smaller case, or free memory if it was killed."
        )
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise GenerationError(answer["refused"])
    return SpeechFigures(**answer) if isinstance(case, SpeechCase) else Figures(**answer)
