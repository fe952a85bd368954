# SPDX-License-Identifier: Apache-2.0
"""How fast a package is: sizes in, figures out, each case in a process of its own, see `qeff_zoo.bench_case`."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.tasks import (
    ANY_TO_ANY,
    AUDIO_TEXT_TO_TEXT,
    IMAGE_TEXT_TO_TEXT,
    IMAGE_TO_TEXT,
    TEXT2TEXT,
    TEXT_GENERATION,
)

if TYPE_CHECKING:
    from qeff_zoo.runtime.speculation import Own

_PROMPT_LEN, _GENERATION_LEN = 128, 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to measure.

    Args:
        batch_size: Requests at a time.
        prompt_len: Tokens of each prompt.
        generation_len: Tokens to generate for each.
        threads: CPU threads that compute one operator; None for one per physical core.
        speculate: What drafts tokens: "lookup", "heads", or the folder of a package; None for nothing.
        images: Files of the pictures of each prompt, whose tokens are counted beside `prompt_len`; without any, a
            package that reads pictures is shown one of noise. Where text is written of a picture alone, its prompt is
            how that begins.
        sounds: The same of recordings, of a package that hears.
    """

    batch_size: int
    prompt_len: int
    generation_len: int
    threads: int | None
    speculate: str | None = None
    images: tuple[str, ...] = ()
    sounds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Figures(Case):
    """What was measured: medians over the runs.

    Args:
        ttft_s: Seconds until a request has its first token, on average over the batch; pictures and sounds are
            prepared and encoded in that time.
        encode_s: Seconds to encode the pictures or sounds of a prompt; None of packages that read none.
        image_tokens: Tokens of a prompt that are of pictures.
        audio_tokens: The same of sounds.
        prefill_tokens_per_s: Prompt tokens, divided by the time of prefill calls.
        decode_tokens_per_s: Generated tokens but the first of each request, divided by the rest of the time; None where
            each request has only one.
        e2e_tokens_per_s: Generated tokens, divided by the whole time.
        peak_rss_bytes: Highest resident set of the case's process, mapped weights included.
        drafted_tokens: Tokens that were drafted and checked.
        accepted_tokens: Of those, how many the model chose as well.
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


def plan(
    package: Package,
    *,
    prompt_lens: Sequence[int] = (),
    generation_len: int | None = None,
    batch_sizes: Sequence[int] = (),
    threads: int | None = None,
    spread: bool = False,
    speculate: "Package | Own | None" = None,
    images: Sequence[str] = (),
    sounds: Sequence[str] = (),
) -> list[Case]:
    """List the cases of a package: every batch size with every prompt length.

    Args:
        package: For text generation.
        prompt_lens: Left out, 128 or what the context has room for.
        generation_len: Left out, 64 or what the context has room for.
        batch_sizes: Left out, one and all rows of the package.
        threads: CPU threads; None for one per physical core.
        spread: Sizes that are left out cover the context, and the rows, by doubling.
        speculate: What drafts tokens.
        images: Files of pictures for each prompt.
        sounds: Files of recordings for each prompt.

    Raises:
        GenerationError: The package cannot be measured, or not with these sizes; every reason is given.
    """
    from qeff_zoo.runtime.sizes import DecoderSizes

    media = (IMAGE_TEXT_TO_TEXT, AUDIO_TEXT_TO_TEXT, ANY_TO_ANY)
    measured = (TEXT_GENERATION, TEXT2TEXT, *media, IMAGE_TO_TEXT)
    if package.task not in measured:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}; expected "
            f"{' or '.join(map(repr, measured))}, whose speed is measured in tokens per second. Measure such a package."
        )
    for flag, files, task, other in (
        ("--image", images, IMAGE_TEXT_TO_TEXT, IMAGE_TO_TEXT),
        ("--sound", sounds, AUDIO_TEXT_TO_TEXT, ANY_TO_ANY),
    ):
        if files and package.task not in (task, other, ANY_TO_ANY):
            raise GenerationError(
                f"{flag} does not apply to {package.task}, which reads none; expected {task!r}. Leave it out."
            )
    if package.task == IMAGE_TO_TEXT:
        if len(images) > 1:
            raise GenerationError(
                f"There are {len(images)} pictures, and text is written of one; expected one. Give --image once."
            )
        prompt_lens = prompt_lens or [1]
    shown = package.task in media
    sizes = DecoderSizes.read(package.programs[0].specializations)
    new = generation_len
    if new is None:
        new = max(1, min(_GENERATION_LEN, sizes.ctx_len // (4 if shown else 2)))
    room = sizes.encoder_ctx_len or sizes.ctx_len - new
    if shown:  # of which pictures and sounds have most
        room //= 3
    if not prompt_lens:
        prompt_lens = _doubled(room) if spread else [max(1, min(_PROMPT_LEN, room))]
    if not batch_sizes:
        batch_sizes = _doubled(sizes.rows) if spread else sorted({1, sizes.rows})
    drafts = str(speculate.path.absolute()) if isinstance(speculate, Package) else speculate
    cases = [
        Case(
            batch_size=batch,
            prompt_len=length,
            generation_len=new,
            threads=threads,
            speculate=drafts,
            images=tuple(images),
            sounds=tuple(sounds),
        )
        for batch, length in product(batch_sizes, prompt_lens)
    ]
    problems = {problem: None for case in cases for problem in _problems(case, sizes)}
    if problems:
        raise GenerationError("\n".join(problems))
    return cases


def _doubled(most: int) -> list[int]:
    """Return `most`, and up to three times half of it."""
    return sorted({max(1, most >> halvings) for halvings in range(4)})


def _problems(case: Case, sizes: Any) -> list[str]:
    """Say why a case cannot be run."""
    found = []
    for name in ("batch_size", "prompt_len", "generation_len", "threads"):
        value = getattr(case, name)
        if value is not None and value < 1:
            found.append(
                f"Cannot measure {name} {value}; expected at least 1. Change --{name.replace('_', '-')}."
            )
    if case.batch_size > sizes.rows:
        found.append(
            f"A batch of {case.batch_size} is more than the package has rows; expected at most {sizes.rows}. Change "
            "--batch-size, or build with a larger --batch-size or --full-batch-size."
        )
    if sizes.encoder_ctx_len:
        found += _misfits(case, sizes)
    elif case.prompt_len + case.generation_len > sizes.ctx_len:
        found.append(
            f"A prompt of {case.prompt_len:,} and {case.generation_len:,} new tokens do not fit; expected at most the "
            f"{sizes.ctx_len:,} of ctx_len together. Change --prompt-len or --generation-len, or build with a larger "
            "--ctx-len."
        )
    return found


def _misfits(case: Case, sizes: Any) -> Iterator[str]:
    """Say what is too long where prompts are read apart, and an answer begins with a token."""
    for name, most, size in (
        ("prompt_len", sizes.encoder_ctx_len, "seq_lens"),
        ("generation_len", sizes.ctx_len - 1, "ctx_len"),
    ):
        if getattr(case, name) > most:
            yield (
                f"A {name} of {getattr(case, name):,} does not fit; expected at most {most:,}, by {size} of the "
                f"package. Change --{name.replace('_', '-')}, or build with a larger --{size.replace('_', '-')}."
            )


def run(
    package: Package,
    cases: Sequence[Case],
    *,
    repeat: int = 3,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Figures]:
    """Measure cases, one after the other, each in a process of its own.

    Args:
        package: For text generation.
        cases: As `plan` lists them.
        repeat: Runs that count.
        progress: Told of every case.

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


def _in_a_process(package: Package, case: Case, repeat: int) -> Figures:
    asked = {"package": str(package.path.absolute()), "repeat": repeat, "case": asdict(case)}
    command = [sys.executable, "-m", "qeff_zoo.bench_case", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise GenerationError(
            f"Measuring {package.name!r} with {asdict(case)} ended with {done.returncode}: {said} Expected figures. "
            "Try a smaller case, or free memory if it was killed."
        )
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise GenerationError(answer["refused"])
    return Figures(**answer)
