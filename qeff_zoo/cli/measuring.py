# SPDX-License-Identifier: Apache-2.0
"""`bench`: how fast a package is, as a table, as JSON, or drawn."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inapplicable_flags import refuse_idle
from qeff_zoo.cli.inputs import drafting, usable_package
from qeff_zoo.cli.printing import print_json, table
from qeff_zoo.package import Package
from qeff_zoo.tasks import SPEECH_RECOGNITION

#: Flags that mean nothing where speech is written down; and nothing either where frames are labelled.
_OF_PROMPTS = {"prompt_len", "image", "speculate", "plot"}
_OF_SPEECH_TOKENS = {"generation_len", "language"}


def bench_command(arguments: argparse.Namespace) -> None:
    """Measure a package."""
    from qeff_zoo import bench
    from qeff_zoo.bench import plots
    from qeff_zoo.terminal.progress import Stopwatch

    package = usable_package(arguments.package)
    speech = package.task in bench.SPEECH
    cases: Any = _speech(package, arguments) if speech else _prompts(package, arguments)
    if arguments.plot is not None:
        plots.check(arguments.plot)
    watch = Stopwatch(reporter(arguments))
    with watch.stage("bench", total=len(cases), unit="case") as advance:
        figures: Any = bench.run(package, cases, repeat=arguments.repeat, progress=advance)
    if arguments.plot is not None:
        plots.draw(figures, arguments.plot, package.name)
    if arguments.json:
        print_json([asdict(one) for one in figures])
    else:
        print(_speech_table(figures) if speech else _prompts_table(figures))


def _prompts(package: Package, arguments: argparse.Namespace) -> Any:
    """Return the cases of a package that answers prompts, or writes of pictures."""
    from qeff_zoo import bench

    refuse_idle(package.task, arguments, ["language"], "figures")
    return bench.plan(
        package,
        prompt_lens=arguments.prompt_len,
        generation_len=arguments.generation_len,
        batch_sizes=arguments.batch_size,
        threads=arguments.threads,
        spread=arguments.plot is not None,
        speculate=drafting(arguments),
        images=arguments.image,
        sounds=arguments.sound,
    )


def _speech(package: Package, arguments: argparse.Namespace) -> Any:
    """Return the cases of a package that writes down speech."""
    from qeff_zoo import bench

    labels = package.task == SPEECH_RECOGNITION
    idle = _OF_PROMPTS | (_OF_SPEECH_TOKENS if labels else set())
    refuse_idle(package.task, arguments, idle, "figures")
    return bench.plan_speech(
        package,
        batch_sizes=arguments.batch_size,
        generation_len=arguments.generation_len,
        threads=arguments.threads,
        language=arguments.language,
        sounds=arguments.sound,
    )


def _prompts_table(figures: Sequence[Any]) -> str:
    from qeff_zoo.package.description import human_size

    tokens = {"image": figures[0].image_tokens, "sound": figures[0].audio_tokens}
    seen = [name for name, count in tokens.items() if count]
    rows = [
        [one.batch_size, one.prompt_len,
         *([one.image_tokens + one.audio_tokens] if seen else []),
         *([] if one.encode_s is None else [f"{one.encode_s:.3f}"]),
         one.generation_len, f"{one.ttft_s:.3f}", f"{one.prefill_tokens_per_s:,.1f}",
         "" if one.decode_tokens_per_s is None else f"{one.decode_tokens_per_s:,.1f}",
         f"{one.e2e_tokens_per_s:,.1f}", human_size(one.peak_rss_bytes),
         *([f"{one.accepted_tokens:,} of {one.drafted_tokens:,}"] if one.speculate else [])]
        for one in figures
    ]  # fmt: skip
    timed = [] if figures[0].encode_s is None else ["encode s"]
    headers = ["batch", "prompt", *seen, *timed, "new", "ttft s", "prefill/s", "decode/s", "all/s"]
    headers += ["peak memory"]
    headers += ["accepted"] if figures[0].speculate else []
    return table(rows, headers)


def _speech_table(figures: Sequence[Any]) -> str:
    from qeff_zoo.package.description import human_size

    writes = figures[0].ttft_s is not None
    rows = [
        [one.batch_size, f"{one.sound_s:.1f}",
         *([f"{one.generated_tokens:,}", f"{one.ttft_s:.3f}", f"{one.decode_tokens_per_s:,.1f}"] if writes else []),
         f"{one.total_s:.3f}", f"{one.real_time_factor:.4f}", human_size(one.peak_rss_bytes)]
        for one in figures
    ]  # fmt: skip
    written = ["new", "ttft s", "decode/s"] if writes else []
    return table(rows, ["batch", "sound s", *written, "all s", "real-time factor", "peak memory"])
