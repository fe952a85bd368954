# SPDX-License-Identifier: Apache-2.0
"""The `bench` command: speed of a package as a table, as JSON, or as a chart."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qeff_zoo.cli.applicable import refuse_inapplicable, task_of
from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inputs import drafting, usable_package
from qeff_zoo.cli.options import add_draft, add_package, add_threads, command
from qeff_zoo.package import Package
from qeff_zoo.terminal.printing import print_json, table

#: Load of a machine up to which its speed is that of an idle one.
_IDLE = 0.5


def bench_command(arguments: argparse.Namespace) -> None:
    """Measure a package."""
    from qeff_zoo import bench
    from qeff_zoo.bench import plots
    from qeff_zoo.disk.plot_files import require_drawable
    from qeff_zoo.terminal.progress import Stopwatch

    package = usable_package(arguments.package)
    task = task_of(package)
    refuse_inapplicable("bench", task, arguments)
    speech = task.commands.bench == "speech"
    cases: Any = _speech(package, arguments) if speech else _prompts(package, arguments)
    if arguments.plot is not None:
        require_drawable(arguments.plot)
    busy = os.getloadavg()[0]
    watch = Stopwatch(reporter(arguments))
    with watch.stage("bench", total=len(cases), unit="case") as advance:
        figures: Any = bench.run(package, cases, repeat=arguments.repeat, progress=advance)
    if arguments.plot is not None:
        plots.draw(figures, arguments.plot, package.name)
    if arguments.record:
        _record(package, figures, busy)
    if arguments.json:
        print_json([asdict(figure) for figure in figures])
    else:
        print(_speech_table(figures) if speech else _prompts_table(figures))


def _record(package: Package, figures: Sequence[Any], busy: float) -> None:
    """Add the figures, the machine, and how busy it was with other work, to the record of the package."""
    from qeff_zoo.cli.doctor import processor_name
    from qeff_zoo.validation.judgement.records import add_measured

    cases = [asdict(figure) for figure in figures]
    where = processor_name() + (f", busy with other work: load {busy:.1f}" if busy > _IDLE else "")
    add_measured(package, {"speed": {"where": where, "cases": cases}})


def _prompts(package: Package, arguments: argparse.Namespace) -> Any:
    """Return the cases of a package that generates from prompts or images."""
    from qeff_zoo import bench

    return bench.plan(
        package,
        prompt_lens=arguments.prompt_len,
        generation_len=arguments.generation_len,
        batch_sizes=arguments.batch_size,
        threads=arguments.threads,
        spread=arguments.plot is not None,
        draft=drafting(arguments),
        images=arguments.image,
        audio=arguments.audio,
    )


def _speech(package: Package, arguments: argparse.Namespace) -> Any:
    """Return the cases of a package that transcribes speech."""
    from qeff_zoo import bench

    return bench.plan_speech(
        package,
        batch_sizes=arguments.batch_size,
        generation_len=arguments.generation_len,
        threads=arguments.threads,
        language=arguments.language,
        audio=arguments.audio,
    )


def _prompts_table(figures: Sequence[Any]) -> str:
    from qeff_zoo.terminal.printing import human_size

    tokens = {"image": figures[0].image_tokens, "audio": figures[0].audio_tokens}
    kinds = [name for name, count in tokens.items() if count]
    rows = [
        [figure.batch_size, figure.prompt_len,
         *([figure.image_tokens + figure.audio_tokens] if kinds else []),
         *([] if figure.encode_s is None else [f"{figure.encode_s:.3f}"]),
         figure.generation_len, f"{figure.ttft_s:.3f}", f"{figure.prefill_tokens_per_s:,.1f}",
         "" if figure.decode_tokens_per_s is None else f"{figure.decode_tokens_per_s:,.1f}",
         f"{figure.e2e_tokens_per_s:,.1f}", human_size(figure.peak_rss_bytes),
         *([f"{figure.accepted_tokens:,} of {figure.drafted_tokens:,}"] if figure.draft else [])]
        for figure in figures
    ]  # fmt: skip
    timed = [] if figures[0].encode_s is None else ["encode s"]
    headers = ["batch", "prompt", *kinds, *timed, "new", "ttft s", "prefill/s", "decode/s", "all/s"]
    headers += ["peak memory"]
    headers += ["accepted"] if figures[0].draft else []
    return table(rows, headers)


def _speech_table(figures: Sequence[Any]) -> str:
    from qeff_zoo.terminal.printing import human_size

    writes = figures[0].ttft_s is not None
    rows = [
        [figure.batch_size, f"{figure.audio_s:.1f}",
         *([f"{figure.generated_tokens:,}", f"{figure.ttft_s:.3f}", f"{figure.decode_tokens_per_s:,.1f}"]
           if writes else []),
         f"{figure.total_s:.3f}", f"{figure.real_time_factor:.4f}", human_size(figure.peak_rss_bytes)]
        for figure in figures
    ]  # fmt: skip
    written = ["new", "ttft s", "decode/s"] if writes else []
    return table(rows, ["batch", "audio s", *written, "all s", "real-time factor", "peak memory"])


# --- arguments ----------------------------------------------------------------------------------


def _add_bench(commands: Any) -> None:
    parser = command(
        commands,
        "bench",
        "measure the speed of generation or transcription",
        applicable=True,
    )
    add_package(parser)
    many: dict[str, Any] = {"type": int, "nargs": "+", "default": [], "metavar": "N"}
    parser.add_argument("--prompt-len", **many, help="tokens per prompt (default: 128)")
    parser.add_argument(
        "--generation-len",
        type=int,
        metavar="N",
        help="tokens to generate (default: 64), or largest number per window of speech",
    )
    parser.add_argument(
        "--batch-size",
        **many,
        help="concurrent requests (default: 1, and all slots of the package)",
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="image of each prompt; repeatable (default: noise, 448 x 448)",
    )
    parser.add_argument(
        "--audio",
        action="append",
        default=[],
        metavar="FILE",
        help="audio file of each prompt, or to transcribe (default: noise that fills one window)",
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="spoken language of audio (default: detected by multilingual models)",
    )
    add_draft(parser)
    add_threads(parser)
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="measured runs (default: 3)"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="also add the figures to validated_models/ORG/NAME.json, which `validate --record` wrote",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="also plot speed by context length and by batch size; sizes then double up to the largest by default",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = ((_add_bench, {"bench": bench_command}),)
