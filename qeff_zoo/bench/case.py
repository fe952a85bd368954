# SPDX-License-Identifier: Apache-2.0
"""One case of `qeff_zoo.bench`, measured in this process.

    python -m qeff_zoo.bench.case '{"package": DIR, "repeat": 3, "case": {...}}'

A case generates for a batch of prompts of random tokens, greedily and ignoring EOS, so that it always does the same
work: once to warm up, then `repeat` times. Its figures are the medians, and the memory is that of its process.
Of a package that writes down speech, a batch of recordings is written down each time.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.contract import IMAGE_TO_TEXT, find
from qeff_zoo.errors import GenerationError, ZooError
from qeff_zoo.package import Package
from qeff_zoo.runtime.decoding.sampling import Sampling
from qeff_zoo.terminal.progress import peak_rss_bytes

from . import Case, Figures, SpeechCase, SpeechFigures

_IMAGE_SIZE = 448, 448  # height and width in pixels
_AUDIO = 30  # seconds of noise at most


def main(arguments: Sequence[str]) -> None:
    """Measure one case in this process and print its figures as JSON."""
    job = json.loads(arguments[0])
    try:
        package, case, repeat = Package.open(job["package"]), job["case"], job["repeat"]
        if find(package.task).commands.bench == "speech":
            answer = asdict(measure_speech(package, SpeechCase(**case), repeat))
        else:
            answer = asdict(measure(package, Case(**case), repeat))
    except ZooError as error:
        answer = {"refused": str(error)}
    json.dump(answer, sys.stdout)


def measure(package: Package, case: Case, repeat: int) -> Figures:
    """Open a package and generate, once to warm up.

    Args:
        package: To be measured.
        case: The sizes.
        repeat: Runs that count.

    Raises:
        GenerationError: The package cannot run the case.
    """
    from qeff_zoo.runtime.engine.speculation import OWN
    from qeff_zoo.sessions import open_session

    drafts: Any = case.draft
    if drafts not in (None, *OWN):
        drafts = Package.open(drafts)
    session: Any = open_session(package, threads=case.threads, draft=drafts)
    medians = _medians(run_once, session, case, repeat)
    return Figures(
        **asdict(case),
        ttft_s=medians["ttft_s"],
        encode_s=medians["encode_s"] if session.reader or session.task == IMAGE_TO_TEXT else None,
        image_tokens=int(medians["shown_tokens"] - medians["heard_tokens"])
        if session.reader
        else 0,
        audio_tokens=int(medians["heard_tokens"]),
        prefill_tokens_per_s=(
            case.batch_size * (case.prompt_len + medians["shown_tokens"]) / medians["prefill_s"]
        ),
        decode_tokens_per_s=(
            case.batch_size * (case.generation_len - 1) / medians["decode_s"]
            if case.generation_len > 1
            else None
        ),
        e2e_tokens_per_s=case.batch_size * case.generation_len / medians["total_s"],
        peak_rss_bytes=peak_rss_bytes(),
        drafted_tokens=int(medians["drafted"]),
        accepted_tokens=int(medians["accepted"]),
    )


def run_once(session: Any, case: Case, number: int) -> dict[str, float]:
    """Generate for one batch of prompts that no run before has had.

    Args:
        session: Generates.
        case: The sizes.
        number: Number of the run, which seeds the prompts.

    Returns:
        Seconds of each part, and tokens that were drafted, accepted, and of images or audio.
    """
    draw = random.Random(number)
    firsts: list[float] = []
    # A prompt has no placeholder tokens besides those of its images or recordings.
    shown = session.media_tokens if session.reader else None
    taken = {*shown.markers.values(), *shown.placeholders} if shown else set()
    of_image = session.task == IMAGE_TO_TEXT
    if of_image and session.prompts:
        taken = {session.prompts.placeholder}
    every = [token for token in range(session.decoder.vocab_size) if token not in taken]
    prompts = [draw.choices(every, k=case.prompt_len) for _ in range(case.batch_size)]
    begun = time.perf_counter()
    requests = [_request(session, case, prompt, number) for prompt in prompts]
    prepared = time.perf_counter() - begun if session.reader or of_image else 0.0
    answers = [session.answer(request, _FirstToken(firsts)) for request in requests]
    begun, before = time.perf_counter() - prepared, session.sources.seconds if of_image else 0.0
    with session.exclusively() as scheduler:
        for answer in answers:
            scheduler.submit(answer)
        while scheduler.step():
            pass
    total = time.perf_counter() - begun
    for answer in answers:
        session.generation(answer)  # or its error
    read = session.sources.seconds - before if of_image else 0.0
    prefill = scheduler.timings.prefill_seconds - read
    encoded = sum(part.seconds for request in requests for part in request.encoded)
    return {
        "ttft_s": statistics.mean(firsts) - begun,
        "prefill_s": prefill,
        "decode_s": total - prefill - prepared - read,
        "encode_s": (encoded + read) / len(requests),
        "shown_tokens": _tokens_run(requests[0], apart=of_image) - case.prompt_len,
        "heard_tokens": sum(
            len(session.run_of(part)) for part in requests[0].encoded if part.kind == "audio"
        ),
        "total_s": total,
        "drafted": scheduler.timings.drafted_tokens,
        "accepted": scheduler.timings.accepted_tokens,
    }


def measure_speech(package: Package, case: SpeechCase, repeat: int) -> SpeechFigures:
    """Open a package and write down recordings, once to warm up.

    Args:
        package: To be measured.
        case: The sizes.
        repeat: Runs that count.

    Raises:
        GenerationError: The package cannot run the case.
    """
    from qeff_zoo.sessions import open_session

    session: Any = open_session(package, threads=case.threads)
    figures: dict[str, Any] = _medians(transcribe_once, session, case, repeat)
    if "generated_tokens" in figures:
        figures["generated_tokens"] = int(figures["generated_tokens"])
    return SpeechFigures(**asdict(case), **figures, peak_rss_bytes=peak_rss_bytes())


def transcribe_once(session: Any, case: SpeechCase, number: int) -> dict[str, float]:
    """Write down one batch of recordings.

    Args:
        session: Writes them down.
        case: The sizes.
        number: Number of the run, which seeds the noise.

    Returns:
        What `SpeechFigures` has of one run.
    """
    step = session.features.step
    window = session.features.samples(session.frames) // step * step
    samples = min(window, _AUDIO * session.rate)
    recordings = [case.audio or _draw_audio(samples, number, row) for row in range(case.batch_size)]
    writes = session.generates
    choices = {"language": case.language, "generation_len": case.generation_len} if writes else {}
    begun = time.perf_counter()
    transcriptions = session.transcribe(recordings, **choices)
    total = time.perf_counter() - begun
    run = {
        "audio_s": transcriptions[0].seconds,
        "total_s": total,
        "real_time_factor": total / sum(transcription.seconds for transcription in transcriptions),
    }
    if writes:
        timings = session.timings
        run |= {
            "ttft_s": timings.first - begun,
            "generated_tokens": timings.decode_tokens,
            "decode_tokens_per_s": timings.decode_tokens / timings.decode_seconds,
        }
    return run


def _tokens_run(request: Any, *, apart: bool) -> int:
    """Count the tokens that are run before the first of an answer; `apart` from what an encoder reads."""
    return len(request.prompt if apart else request.source or request.prompt)


def _request(session: Any, case: Case, prompt: list[int], number: int) -> Any:
    """Return a request; its images are encoded anew, as those of a new client."""
    choices: dict[str, Any] = {
        "generation_len": case.generation_len,
        "ignore_eos": True,
        "sampling": Sampling(temperature=0),
        "settings": GenerationSettings(),
    }
    if session.task == IMAGE_TO_TEXT:
        (image,) = case.images or [_noise(session, "images", number)]
        begun = prompt if session.prompts else [session.start, *prompt[1:]]
        return session.request(image, prompt=begun, **choices)
    if session.reader is None:
        return session.request(prompt, **choices)
    for reader in session.readers:
        reader.forget()
    shown = {
        name: getattr(case, name) or [_noise(session, name, number)]
        for name in session.media_tokens.markers
    }
    placeholder = session.media_tokens.place
    placeholders = [
        token for name, some in shown.items() for token in placeholder(name) * len(some)
    ]
    request = session.request([*placeholders, *prompt], **choices, **shown)
    if request.limit < case.generation_len:
        media_tokens = len(request.prompt) - case.prompt_len
        flags = " or ".join(f"--{name.removesuffix('s')}" for name in shown)
        raise GenerationError(
            f"A prompt of {case.prompt_len:,} tokens, {' and '.join(shown)} of {media_tokens:,} and "
            f"{case.generation_len:,} new tokens do not fit; expected at most the {session.longest + 1:,} of ctx_len "
            f"together. Change --prompt-len, --generation-len or {flags}, or build with a larger --ctx-len."
        )
    return request


def _noise(session: Any, argument: str, number: int) -> Any:
    """Return a random image, or random audio that fills one window."""
    import numpy as np

    from qeff_zoo.media.features import load_features

    if argument == "images":
        random = np.random.default_rng(number)
        return random.integers(0, 256, (*_IMAGE_SIZE, 3), np.uint8)
    frames = session.readers[-1].shape[1]
    return _draw_audio(frames * load_features(session.folder).step, number)


def _draw_audio(samples: int, *numbers: int) -> Any:
    """Draw audio, (samples,), that depends on these numbers alone."""
    import numpy as np

    return np.random.default_rng(numbers).uniform(-0.1, 0.1, samples).astype(np.float32)


def _medians(
    once: Callable[[Any, Any, int], dict[str, float]], session: Any, case: Any, repeat: int
) -> dict[str, float]:
    """Run a case, once to warm up and then as often as counts."""
    runs = [once(session, case, number) for number in range(repeat + 1)][1:]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


class _FirstToken:
    """Notes when a request gets its first token.

    Args:
        firsts: Destination of the times.
    """

    def __init__(self, firsts: list[float]) -> None:
        self._firsts, self._seen = firsts, False

    def __call__(self, delta: object) -> None:
        if not self._seen:
            self._firsts.append(time.perf_counter())
        self._seen = True


if __name__ == "__main__":
    main(sys.argv[1:])
