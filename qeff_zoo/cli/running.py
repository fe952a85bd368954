# SPDX-License-Identifier: Apache-2.0
"""A package at work: `run`, `serve`, `serve-args` and `bench`."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.printing import print_generated, print_json, table
from qeff_zoo.cli.reading import read_text, usable_package
from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks import NAMES, find

# --- run ---------------------------------------------------------------------------------------


def run_command(arguments: argparse.Namespace) -> None:
    """Run a package on prompts or texts."""
    prompts = list(arguments.prompt)
    if arguments.prompts_file is not None:
        prompts += [line for line in read_text(arguments.prompts_file).splitlines() if line.strip()]
    if not prompts:
        raise GenerationError(
            "No prompt was given, expected at least one. Use --prompt TEXT or --prompts-file FILE."
        )
    from qeff_zoo.runtime import open_session  # what is not installed is missed before a pull

    package = usable_package(arguments.package)
    pairs = package.task in NAMES and find(package.task).session().takes_pairs
    if arguments.pair and not pairs:
        raise GenerationError(
            f"--pair does not apply to {package.task}, which reads one text at a time. Leave it out."
        )
    if arguments.image and package.task in NAMES and "vision" not in find(package.task).parts:
        raise GenerationError(
            f"--image does not apply to {package.task}, which reads text alone. Leave it out."
        )
    if arguments.image and len(prompts) > 1:
        raise GenerationError(
            f"There are {len(prompts)} prompts, and --image belongs to one; expected one prompt. Run them one by one."
        )
    session = open_session(package, threads=arguments.threads)
    task = find(package.task)
    run = _label_tokens if task.by_token else _RUNS[task.answers]
    run(session, prompts, arguments)


def _generate(session: Any, prompts: list[str], arguments: argparse.Namespace) -> None:
    stream = None
    if len(prompts) == 1 and not arguments.json:
        stream = lambda _, text: print_generated(text, end="")  # noqa: E731
    outputs = session.generate(
        prompts,
        generation_len=arguments.generation_len,
        sampling=_sampling(arguments),
        stop=arguments.stop,
        chat=arguments.chat,
        stream=stream,
        **({"images": [arguments.image]} if arguments.image else {}),
    )
    if arguments.json:
        answer = [_as_json(output) for output in outputs]
        print_json({"outputs": answer, "metrics": session.metrics.as_dict()})
        return
    if stream is not None:
        print()
    else:
        for output in outputs:
            print_generated(f"{output.prompt}\n-> {output.text}\n")
    print(session.metrics, file=sys.stderr)


def _sampling(arguments: argparse.Namespace) -> Any:
    from qeff_zoo.runtime import Sampling

    given = {item.name: getattr(arguments, item.name) for item in fields(Sampling)}
    given = {name: value for name, value in given.items() if value is not None}
    random = [name for name in ("top_k", "top_p", "min_p", "seed") if name in given]
    if random and "temperature" not in given:
        raise GenerationError(
            f"--{random[0].replace('_', '-')} is for tokens drawn at random, and without --temperature none are. "
            "Expected both or neither. Add --temperature 1, or leave it out."
        )
    return Sampling(**given)


def _as_json(output: Any) -> dict[str, Any]:
    names = ("prompt", "text", "token_ids", "finish_reason")
    found = {name: getattr(output, name) for name in names}
    if output.logprobs is not None:
        found["logprobs"] = [asdict(one) for one in output.logprobs]
    return found


def _embed(session: Any, texts: list[str], arguments: argparse.Namespace) -> None:
    embeddings = session.embed(texts)
    if arguments.json:
        outputs = [
            {"text": t, "embedding": row.tolist()} for t, row in zip(texts, embeddings, strict=True)
        ]
        print_json({"outputs": outputs})
    elif len(texts) == 1:
        print(" ".join(f"{value:.6f}" for value in embeddings[0]))
    else:
        rows = [
            [text, *(f"{value:.3f}" for value in row)]
            for text, row in zip(texts, session.similarity(embeddings), strict=True)
        ]
        print(table(rows, ["cosine", *(str(number) for number in range(1, len(texts) + 1))]))


def _classify(session: Any, texts: list[str], arguments: argparse.Namespace) -> None:
    found = session.classify(_pairs(texts, arguments.pair) if arguments.pair else texts)
    if arguments.json:
        outputs = [
            {"text": one.text, "pair": one.pair, "scores": [asdict(score) for score in one.scores]}
            for one in found
        ]
        print_json({"outputs": outputs})
        return
    rows = [
        [one.text, *([one.pair] if arguments.pair else []), one.label, f"{one.score:.4f}"]
        for one in found
    ]
    print(table(rows, ["text", *(["pair"] if arguments.pair else []), "label", "score"]))


def _pairs(texts: list[str], others: list[str]) -> list[tuple[str, str]]:
    """Pair each prompt with its text, or the only prompt with all of them."""
    if len(texts) == 1:
        texts = texts * len(others)
    if len(texts) != len(others):
        raise GenerationError(
            f"There are {len(texts)} prompts and {len(others)} texts to pair them with; expected as many of both, or "
            f"one prompt. Give --pair once for each --prompt."
        )
    return list(zip(texts, others, strict=True))


def _label_tokens(session: Any, texts: list[str], arguments: argparse.Namespace) -> None:
    found = session.classify(texts)
    if arguments.json:
        outputs = [
            {"text": text, "tokens": [asdict(token) for token in tokens]}
            for text, tokens in zip(texts, found, strict=True)
        ]
        print_json({"outputs": outputs})
        return
    rows = [
        [token.text, f"{token.start}-{token.end}", token.label, f"{token.score:.4f}"]
        for tokens in found
        for token in tokens
    ]
    print(table(rows, ["token", "at", "label", "score"]))


#: What runs a package, by what it answers.
_RUNS: dict[str, Callable[[Any, list[str], argparse.Namespace], None]] = {
    "logits": _generate,
    "embeddings": _embed,
    "scores": _classify,
}


# --- serve -------------------------------------------------------------------------------------


def serve_command(arguments: argparse.Namespace) -> None:
    """Serve a package until interrupted."""
    from qeff_zoo import serving
    from qeff_zoo.runtime import open_session

    package = usable_package(arguments.package)
    key = arguments.api_key
    choices = serving.Choices(
        name=arguments.model_name or package.name,
        fingerprint=package.build_key,
        api_key=os.environ.get("QEFF_ZOO_API_KEY") or None if key is None else key,
        max_queue=arguments.max_queue,
        shutdown_timeout=arguments.shutdown_timeout,
    )

    def announce(url: str) -> None:
        if arguments.json:
            print_json({"url": url, "model": choices.name})
        else:
            print(url)
        sys.stdout.flush()
        print(f"Serving {choices.name}; Ctrl-C ends it.", file=sys.stderr)

    with serving.bind(arguments.host, arguments.port) as listener:
        if choices.api_key is None and not serving.is_local(listener):
            print(
                f"Anyone who reaches {arguments.host} may use this server: it has no --api-key.",
                file=sys.stderr,
            )
        session = open_session(
            package, threads=arguments.threads, prefix_cache_bytes=arguments.prefix_cache_bytes
        )
        serving.serve(session, listener, choices, announce)


def serve_args_command(arguments: argparse.Namespace) -> None:
    """Print the commands that serve a package with vllm-qaic, one per line."""
    from qeff_zoo.api import find_package
    from qeff_zoo.targets.qaic.serve_args import serve_args

    needed = serve_args(find_package(arguments.package))
    if arguments.json:
        print_json(needed.as_dict())
    else:
        print(*needed.commands, sep="\n")


# --- bench -------------------------------------------------------------------------------------


def bench_command(arguments: argparse.Namespace) -> None:
    """Measure a package."""
    from qeff_zoo import bench, plots
    from qeff_zoo.package.description import human_size
    from qeff_zoo.progress import Stopwatch

    package = usable_package(arguments.package)
    cases = bench.plan(
        package,
        prompt_lens=arguments.prompt_len,
        generation_len=arguments.generation_len,
        batch_sizes=arguments.batch_size,
        threads=arguments.threads,
        spread=arguments.plot is not None,
    )
    if arguments.plot is not None:
        plots.check(arguments.plot)
    watch = Stopwatch(reporter(arguments))
    with watch.stage("bench", total=len(cases), unit="case") as advance:
        figures = bench.run(package, cases, repeat=arguments.repeat, progress=advance)
    if arguments.plot is not None:
        plots.draw(figures, arguments.plot, package.name)
    if arguments.json:
        print_json([asdict(one) for one in figures])
        return
    rows = [
        [one.batch_size, one.prompt_len, one.generation_len, f"{one.ttft_s:.3f}", f"{one.prefill_tokens_per_s:,.1f}",
         "" if one.decode_tokens_per_s is None else f"{one.decode_tokens_per_s:,.1f}",
         f"{one.e2e_tokens_per_s:,.1f}", human_size(one.peak_rss_bytes)]
        for one in figures
    ]  # fmt: skip
    headers = ["batch", "prompt", "new", "ttft s", "prefill/s", "decode/s", "all/s", "peak memory"]
    print(table(rows, headers))
