# SPDX-License-Identifier: Apache-2.0
"""The command line: argv -> one typed call -> one printed answer.

stdout is the answer, stderr is progress. Exit codes: 0 done, 1 an error the user can act on, 2 wrong usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from qeff_zoo.arguments import parser
from qeff_zoo.errors import GenerationError, ZooError

#: Packages that a command may lack -> the extra that brings them.
_EXTRAS = {
    **dict.fromkeys(("numpy", "onnxruntime", "tokenizers", "jinja2"), "run"),
    "matplotlib": "plot",
    **dict.fromkeys(("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(
        ("accelerate", "onnx", "onnx_ir", "onnxscript", "torch", "transformers"), "build"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        code = int(_COMMANDS[arguments.command](arguments) or 0)
        sys.stdout.flush()  # here a reader that has left is noticed, and not when Python ends
    except ZooError as error:
        print(f"qeff-zoo: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        first = (
            "torch==2.13.0 " if extra == "build" else ""
        )  # unpinned, pip may bring gigabytes of CUDA
        print(
            f"qeff-zoo: This command needs {error.name!r}, which is not installed. Expected the extra {extra!r}. "
            f"Run `pip install {first}'qeff-zoo[{extra}]'`.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("qeff-zoo: interrupted; nothing half-made was kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left; nobody misses the rest of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _print_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def _table(rows: list[list[Any]], headers: list[str]) -> str:
    from tabulate import tabulate

    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


# --- list, show -----------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> None:
    from qeff_zoo.models import list_models
    from qeff_zoo.registry import list_recipes

    if arguments.models:
        found = [asdict(model) for model in list_models()]
        columns = ["model_id", "recipe", "task", "status"]
    else:
        found = [_facts(recipe) for recipe in list_recipes()]
        columns = ["model_type", "tasks", "architectures", "quant_methods"]
    if arguments.json:
        _print_json(found)
        return
    rows = [[_joined(entry[column]) for column in columns] for entry in found]
    print(_table(rows, columns))


def _joined(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else value or ""


def _facts(recipe: Any) -> dict[str, Any]:
    from qeff_zoo.tasks import tasks_of

    return {
        "model_type": recipe.model_type,
        "architectures": list(recipe.architectures),
        "task": recipe.task,
        "tasks": list(tasks_of(recipe)),
        "quant_methods": list(recipe.quant_methods),
    }


def _show(arguments: argparse.Namespace) -> None:
    from qeff_zoo.models import list_models
    from qeff_zoo.registry import file_name, find_recipe
    from qeff_zoo.tasks import tasks_of
    from qeff_zoo.transforms import in_words

    recipe = find_recipe(arguments.model_type)
    models = [one for one in list_models() if one.recipe == file_name(recipe.model_type)]
    shapes = {
        name: {k: v for k, v in asdict(shape).items() if v} for name, shape in recipe.shapes.items()
    }
    if arguments.json:
        transforms = [
            {"name": t.name, "parameters": dict(t.parameters), "does": in_words(t)}
            for t in recipe.transforms
        ]
        facts = {**_facts(recipe), "special": recipe.special, "transforms": transforms}
        _print_json({**facts, "shapes": shapes, "models": [asdict(model) for model in models]})
        return
    print(f"{recipe.model_type}: {recipe.special}\n")
    rows = [
        ["architectures", ", ".join(recipe.architectures)],
        ["tasks", ", ".join(tasks_of(recipe))],
        ["checkpoints", ", ".join(recipe.quant_methods)],
        *([f"transform {t.name}", in_words(t)] for t in recipe.transforms),
        *(
            [f"--profile {name}", ", ".join(f"{k} {v}" for k, v in shape.items())]
            for name, shape in shapes.items()
        ),
        *([f"{model.status} model", model.model_id] for model in models),
    ]
    print(_table(rows, []))


# --- plan, build, export --------------------------------------------------------------------------


def _request(arguments: argparse.Namespace) -> Any:
    from qeff_zoo.plan import Request

    return Request(**{item.name: getattr(arguments, item.name) for item in fields(Request)})


def _plan(arguments: argparse.Namespace) -> None:
    from qeff_zoo.pipeline import make_plan

    _, plan = make_plan(arguments.model, _request(arguments), revision=arguments.revision)
    if arguments.json:
        _print_json({"build_key": plan.build_key, "fields": plan.explained(), "spec": plan.spec})
        return
    rows = [[name, field["value"], field["by"]] for name, field in plan.explained().items()]
    print(_table(rows, ["field", "value", "set by"]))
    print(f"\nbuild_key  {plan.build_key}")


def _build(arguments: argparse.Namespace) -> None:
    from qeff_zoo import pipeline

    built = pipeline.build(
        arguments.model,
        _request(arguments),
        revision=arguments.revision,
        validate=not arguments.no_validate,
        output=arguments.output,
        reporter=_reporter(arguments),
    )
    package = built.package
    if arguments.json:
        answer = {"path": str(package.path), "build_key": package.build_key, "hit": built.hit}
        _print_json({**answer, "seconds": built.seconds, "peak_rss_bytes": built.peak_rss_bytes})
        return
    took = sum(built.seconds.values())
    state = "was in the store already" if built.hit else f"built, validated: {package.validated}"
    print(f"{package.name}: {state} ({took:.1f} s)", file=sys.stderr)
    print(package.path)


def _export(arguments: argparse.Namespace) -> None:
    from qeff_zoo import pipeline

    exported = pipeline.export(
        arguments.model,
        arguments.output,
        request=_request(arguments),
        revision=arguments.revision,
        graph_only=arguments.graph_only,
        reporter=_reporter(arguments),
    )
    if arguments.json:
        _print_json(
            {
                "path": str(exported.path),
                "seconds": exported.seconds,
                "peak_rss_bytes": exported.peak_rss_bytes,
            }
        )
        return
    print(exported.path)


def _reporter(arguments: argparse.Namespace) -> Any:
    """Show progress bars to a person, and nothing to a pipe."""
    from qeff_zoo.progress import Silent

    if arguments.quiet or not sys.stderr.isatty():
        return Silent()
    from qeff_zoo.bars import Bars

    return Bars()


# --- run ------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> None:
    from qeff_zoo.api import find_package, load

    package = find_package(arguments.package)
    prompts = list(arguments.prompt)
    if arguments.prompts_file is not None:
        prompts += [
            line for line in _read_text(arguments.prompts_file).splitlines() if line.strip()
        ]
    if not prompts:
        raise GenerationError(
            "No prompt was given, expected at least one. Use --prompt TEXT or --prompts-file FILE."
        )
    if arguments.pair and package.task != "text-classification":
        raise GenerationError(
            f"--pair does not apply to {package.task}, which reads one text at a time. Leave it out."
        )
    session = load(package, threads=arguments.threads)
    _RUNS[package.task](session, prompts, arguments)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(
            f"Cannot read {str(path)!r}: {error}. Expected a text file in UTF-8."
        ) from error


def _generate(session: Any, prompts: list[str], arguments: argparse.Namespace) -> None:
    stream = None
    if len(prompts) == 1 and not arguments.json:
        stream = lambda _, text: print(text, end="", flush=True)  # noqa: E731
    outputs = session.generate(
        prompts,
        generation_len=arguments.generation_len,
        sampling=_sampling(arguments),
        stop=arguments.stop,
        chat=arguments.chat,
        stream=stream,
    )
    if arguments.json:
        answer = [_as_json(output) for output in outputs]
        _print_json({"outputs": answer, "metrics": session.metrics.as_dict()})
        return
    if stream is not None:
        print()
    else:
        for output in outputs:
            print(f"{output.prompt}\n-> {output.text}\n")
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
        _print_json({"outputs": outputs})
    elif len(texts) == 1:
        print(" ".join(f"{value:.6f}" for value in embeddings[0]))
    else:
        rows = [
            [text, *(f"{value:.3f}" for value in row)]
            for text, row in zip(texts, session.similarity(embeddings), strict=True)
        ]
        print(_table(rows, ["cosine", *(str(number) for number in range(1, len(texts) + 1))]))


def _classify(session: Any, texts: list[str], arguments: argparse.Namespace) -> None:
    found = session.classify(_pairs(texts, arguments.pair) if arguments.pair else texts)
    if arguments.json:
        outputs = [
            {"text": one.text, "pair": one.pair, "scores": [asdict(score) for score in one.scores]}
            for one in found
        ]
        _print_json({"outputs": outputs})
        return
    rows = [
        [one.text, *([one.pair] if arguments.pair else []), one.label, f"{one.score:.4f}"]
        for one in found
    ]
    print(_table(rows, ["text", *(["pair"] if arguments.pair else []), "label", "score"]))


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
        _print_json({"outputs": outputs})
        return
    rows = [
        [token.text, f"{token.start}-{token.end}", token.label, f"{token.score:.4f}"]
        for tokens in found
        for token in tokens
    ]
    print(_table(rows, ["token", "at", "label", "score"]))


#: Task -> what runs its package.
_RUNS: dict[str, Callable[[Any, list[str], argparse.Namespace], None]] = {
    "text-generation": _generate,
    "feature-extraction": _embed,
    "text-classification": _classify,
    "token-classification": _label_tokens,
}


# --- serve ----------------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace) -> None:
    from qeff_zoo import serving
    from qeff_zoo.api import find_package, load

    package = find_package(arguments.package)
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
            _print_json({"url": url, "model": choices.name})
        else:
            print(url)
        sys.stdout.flush()
        print(f"Serving {choices.name}; Ctrl-C ends it.", file=sys.stderr)

    with serving.bind(arguments.host, arguments.port) as listener:
        if choices.api_key is None and not serving.is_local(listener):
            print(
                f"Whoever reaches {arguments.host} may use this server: it has no --api-key.",
                file=sys.stderr,
            )
        session = load(
            package, threads=arguments.threads, prefix_cache_bytes=arguments.prefix_cache_bytes
        )
        serving.serve(session, listener, choices, announce)


# --- bench ----------------------------------------------------------------------------------------


def _bench(arguments: argparse.Namespace) -> None:
    from qeff_zoo import bench, plots
    from qeff_zoo.api import find_package
    from qeff_zoo.package.description import human_size
    from qeff_zoo.progress import Stopwatch

    package = find_package(arguments.package)
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
    watch = Stopwatch(_reporter(arguments))
    with watch.stage("bench", total=len(cases), unit="case") as advance:
        figures = bench.run(package, cases, repeat=arguments.repeat, progress=advance)
    if arguments.plot is not None:
        plots.draw(figures, arguments.plot, package.name)
    if arguments.json:
        _print_json([asdict(one) for one in figures])
        return
    rows = [
        [one.batch_size, one.prompt_len, one.generation_len, f"{one.ttft_s:.3f}", f"{one.prefill_tokens_per_s:,.1f}",
         "" if one.decode_tokens_per_s is None else f"{one.decode_tokens_per_s:,.1f}",
         f"{one.e2e_tokens_per_s:,.1f}", human_size(one.peak_rss_bytes)]
        for one in figures
    ]  # fmt: skip
    headers = ["batch", "prompt", "new", "ttft s", "prefill/s", "decode/s", "all/s", "peak memory"]
    print(_table(rows, headers))


# --- validate, inspect ----------------------------------------------------------------------------


def _validate(arguments: argparse.Namespace) -> int:
    if arguments.perplexity is not None:
        return _perplexity(arguments)
    if useless := [name for name in ("window", "stride", "graph") if getattr(arguments, name)]:
        raise GenerationError(
            f"--{useless[0]} is of perplexities; expected --perplexity FILE beside it. Add that, or leave it out."
        )
    from qeff_zoo.package.description import evidence
    from qeff_zoo.validation import checks

    outcome = checks.check(
        arguments.package,
        checkpoint=arguments.checkpoint,
        record=arguments.record,
        reporter=_reporter(arguments),
    )
    if arguments.json:
        _print_json(outcome.as_dict())
    else:
        print(
            f"{outcome.subject}: {'agrees' if outcome.passed else 'DISAGREES'} with Hugging Face ({outcome.level})"
        )
        print(evidence(outcome.checks))
        if outcome.recorded:
            print(f"\nRecorded in {outcome.recorded}")
    return 0 if outcome.passed else 1


def _perplexity(arguments: argparse.Namespace) -> int:
    from qeff_zoo.api import find_package
    from qeff_zoo.validation import perplexity

    if arguments.record:
        raise GenerationError(
            "--record does not apply to --perplexity, which is no evidence of a package. Leave it out."
        )
    package = find_package(arguments.package)
    scoring = perplexity.prepare(
        package,
        _read_text(arguments.perplexity),
        window=arguments.window,
        stride=arguments.stride,
        batch_size=arguments.batch_size,
    )
    found = perplexity.compare(
        {"package": package},
        scoring,
        checkpoint=arguments.checkpoint,
        graph=arguments.graph,
        reporter=_reporter(arguments),
    )
    if arguments.json:
        _print_json(found.as_dict())
    else:
        print(found)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from qeff_zoo.api import find_package
    from qeff_zoo.package.description import describe

    package = find_package(arguments.package)
    problems = package.verify() if arguments.verify else []
    if arguments.json:
        verified = {"intact": not problems, "problems": problems} if arguments.verify else {}
        _print_json({"path": str(package.path), "manifest": package.manifest, **verified})
    else:
        print(describe(package), end="")
        if arguments.verify:
            print(
                "\nEvery file is what the manifest says."
                if not problems
                else "\n" + "\n".join(problems)
            )
    return 1 if problems else 0


# --- cache, doctor, new ---------------------------------------------------------------------------


def _cache_ls(arguments: argparse.Namespace) -> None:
    from qeff_zoo.store import Store

    store = Store()
    _print_entries(store.entries(), arguments)
    print(f"Store: {store.root}", file=sys.stderr)


def _cache_gc(arguments: argparse.Namespace) -> None:
    from qeff_zoo.store import Store

    older_than = None if arguments.older_than is None else timedelta(days=arguments.older_than)
    _print_entries(Store().gc(older_than=older_than, dry_run=arguments.dry_run), arguments)


def _print_entries(entries: Sequence[Any], arguments: argparse.Namespace) -> None:
    from qeff_zoo.package import Package
    from qeff_zoo.package.description import human_size

    def name(entry: Any) -> str | None:
        return (
            Package.open(entry.path).name
            if (entry.kind, entry.state) == ("package", "complete")
            else None
        )

    if arguments.json:
        facts = [
            {"kind": e.kind, "key": e.key, "name": name(e) if e.path.exists() else None, "path": str(e.path),
             "size": e.size, "state": e.state}
            for e in entries
        ]  # fmt: skip
        _print_json(facts)
        return
    rows = [
        [e.kind, e.state, human_size(e.size), (name(e) if e.path.exists() else None) or "", e.key]
        for e in entries
    ]
    print(_table(rows, ["kind", "state", "size", "name", "key"]))


def _cache_verify(arguments: argparse.Namespace) -> int:
    from qeff_zoo.store import Store

    found = Store().verify()
    if arguments.json:
        _print_json(found)
    else:
        for key, problems in found.items():
            print(f"{key}: {'; '.join(problems) or 'intact'}")
    return 1 if any(found.values()) else 0


def _doctor(arguments: argparse.Namespace) -> None:
    from qeff_zoo.doctor import examine

    findings = examine()
    if arguments.json:
        _print_json([asdict(finding) for finding in findings])
    else:
        print(
            _table(
                [[f.status, f.name, f.detail, f.advice] for f in findings],
                ["", "what", "found", "advice"],
            )
        )


def _new(arguments: argparse.Namespace) -> int:
    from qeff_zoo import scaffold

    proposal = scaffold.propose(arguments.model)
    path = scaffold.write(proposal, arguments.output)
    trial = scaffold.try_out(path)
    if arguments.json:
        facts = {"path": str(path), "relative": proposal.relative, "notes": list(proposal.notes)}
        _print_json({**facts, "trial": asdict(trial)})
    else:
        print(trial.report, *proposal.notes, sep="\n", file=sys.stderr)
        print(path)
    return 0 if trial.passed else 1


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "list": _list,
    "show": _show,
    "plan": _plan,
    "build": _build,
    "export": _export,
    "run": _run,
    "serve": _serve,
    "bench": _bench,
    "validate": _validate,
    "inspect": _inspect,
    "cache ls": _cache_ls,
    "cache gc": _cache_gc,
    "cache verify": _cache_verify,
    "doctor": _doctor,
    "new": _new,
}
