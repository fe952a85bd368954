# SPDX-License-Identifier: Apache-2.0
"""A package at work: `run`, `serve` and `serve-args`."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from qeff_zoo.cli.inapplicable_flags import languages_of, refuse_adapter, refuse_choices
from qeff_zoo.cli.inputs import drafting, read_text, usable_package
from qeff_zoo.cli.printing import print_generated, print_json, table
from qeff_zoo.cli.transcribing import transcribe_all
from qeff_zoo.disk.text_files import lines_of
from qeff_zoo.errors import AdapterError, GenerationError, ServingError
from qeff_zoo.tasks import IMAGE_TO_TEXT, NAMES, find

_BEST = 5  # labels of a picture that are shown

# --- run ---------------------------------------------------------------------------------------


def run_command(arguments: argparse.Namespace) -> None:
    """Run a package on prompts, texts, pictures or recordings."""
    prompts = _prompts(arguments)
    if not prompts and not arguments.image and not arguments.sound:
        raise GenerationError(
            "No prompt was given, expected at least one. Use --prompt TEXT or --prompts-file FILE; for a package that "
            "reads pictures --image FILE, and name recordings for one that reads those."
        )
    from qeff_zoo.runtime import open_session  # what is not installed is missed before a pull

    package = usable_package(arguments.package)
    if arguments.sound and not _hears(package.task):
        transcribe_all(package, arguments)
        return
    given = _given(package.task, prompts, arguments)
    refuse_choices(package.task, arguments)
    refuse_adapter(package.task, arguments)
    session = open_session(
        package,
        threads=arguments.threads,
        prefixes=_prefixes(arguments),
        blocks=bool(arguments.block),
        **_speculation(arguments),
    )
    if arguments.adapter is not None:
        arguments.adapter = _load_adapter(session, arguments.adapter, "--adapter")
    task = find(package.task)
    run = _label_tokens if task.by_token else _RUNS[task.reads, task.answers]
    run = _recognize if arguments.label else run
    run(session, given, arguments)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    prompts: list[str] = list(arguments.prompt)
    if arguments.prompts_file is not None:
        prompts += lines_of(read_text(arguments.prompts_file))
    return prompts


def _hears(task: str) -> bool:
    """Tell whether prompts may have recordings among their text."""
    return task in NAMES and "audio" in find(task).parts


def _given(task: str, prompts: list[str], arguments: argparse.Namespace) -> list[str]:
    """Return what the packages of a task read; refuse what they do not."""
    images, shown = arguments.image, arguments.image or arguments.video or arguments.sound
    sees_text = task in NAMES and find(task).reads == "text" and "vision" in find(task).parts
    if arguments.video and not sees_text:
        raise GenerationError(
            f"--video does not apply to {task}; expected a package for image-text-to-text. Leave it out."
        )
    if sees_text or (_hears(task) and not images):
        if shown and len(prompts) != 1:
            flag = "--image" if images else "--video" if arguments.video else ""
            what = f"{flag} belongs" if flag else "recordings belong"
            raise GenerationError(
                f"There are {len(prompts)} prompts, and {what} to one; expected one. Give --prompt once, and run them "
                "one by one."
            )
        return prompts
    if task in NAMES and find(task).reads == "sound":
        raise GenerationError(
            f"{'--prompt' if prompts else '--image'} does not apply to {task}, which reads recordings. Name them: `run "
            "PACKAGE a.wav`."
        )
    sees = task in NAMES and find(task).reads == "image"
    if task == IMAGE_TO_TEXT:
        if images and len(prompts) < 2:
            return list(images)
        raise GenerationError(
            f"There are {len(images)} pictures and {len(prompts)} prompts; expected pictures, and at most one prompt, "
            "with which each answer begins. Give --image FILE once for each picture, and --prompt once or not at all."
        )
    wrong, flag, reads = (
        (prompts, "--prompt", "--image") if sees else (images, "--image", "--prompt")
    )
    if wrong:
        raise GenerationError(
            f"{flag} does not apply to {task}, which reads {reads[2:]}s alone. Leave it out, and use {reads}."
        )
    return images if sees else prompts


def _files(given: list[str], noun: str = "picture") -> list[str | bytes]:
    """Fetch the pictures, or videos, that are given as URLs; of others the path will do."""
    from qeff_zoo.media.fetching import fetch_media, is_url

    return [fetch_media(one, noun=noun) if is_url(one) else one for one in given]


def _load_adapter(session: Any, given: str, flag: str) -> str:
    """Load what a flag says, `NAME=DIR`; return the name."""
    name, equals, source = given.partition("=")
    if not (name and equals and source):
        raise AdapterError(
            f"{flag} is {given!r}; expected NAME=DIR, such as sql=adapters/sql. Give the adapter a name."
        )
    session.adapters.load(name, source)
    return name


def _speculation(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was asked of drafts."""
    return {"speculate": drafting(arguments), "acceptance": arguments.acceptance}


def _prefixes(arguments: argparse.Namespace) -> Any:
    """Return what is kept of prompts."""
    from qeff_zoo.runtime import PrefixCacheOptions

    return PrefixCacheOptions(
        bytes=arguments.prefix_cache_bytes,
        answers=arguments.prefix_cache_answers,
        folder=arguments.prefix_cache_dir,
    )


def _generate(session: Any, prompts: list[str], arguments: argparse.Namespace) -> None:
    stream = None
    if len(prompts) == 1 and not arguments.json:
        stream = lambda _, text: print_generated(text, end="")  # noqa: E731
    outputs = session.generate(
        prompts,
        stream=stream,
        **_asked(arguments),
        **({"images": [_files(arguments.image)]} if arguments.image else {}),
        **({"videos": [_files(arguments.video, "video")]} if arguments.video else {}),
        **({"sounds": [arguments.sound]} if arguments.sound else {}),
        **languages_of(arguments),
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


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what any answer of tokens is asked for with."""
    return {
        "generation_len": arguments.generation_len,
        "sampling": _sampling(arguments),
        "stop": arguments.stop,
        "chat": arguments.chat,
        "adapter": arguments.adapter,
        "grammar": _grammar(arguments),
        **({"blocks": arguments.block} if arguments.block else {}),
    }


def _write_of_pictures(session: Any, images: list[str], arguments: argparse.Namespace) -> None:
    prompts = _prompts(arguments)
    stream = None
    if len(images) == 1 and not arguments.json:
        stream = lambda _, text: print_generated(text, end="")  # noqa: E731
    outputs = session.generate(
        _files(images), prompt=prompts[0] if prompts else None, stream=stream, **_asked(arguments)
    )
    pairs = list(zip(images, outputs, strict=True))
    if arguments.json:
        answer = [{"image": image, **_as_json(output)} for image, output in pairs]
        print_json({"outputs": answer, "metrics": session.metrics.as_dict()})
        return
    if stream is not None:
        print()
    else:
        for image, output in pairs:
            print_generated(f"{image}\n-> {output.text}\n")
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


def _grammar(arguments: argparse.Namespace) -> Any:
    """Return the form that answers are to have; None for any."""
    from qeff_zoo.runtime import Grammar

    if arguments.regex is not None:
        return Grammar.regex(arguments.regex)
    if arguments.choice:
        return Grammar.choice(arguments.choice)
    if arguments.grammar is not None:
        return Grammar.lark(read_text(arguments.grammar))
    if arguments.json_schema is not None:
        return Grammar.json(read_text(arguments.json_schema))
    return None


def _as_json(output: Any) -> dict[str, Any]:
    names = ("prompt", "text", "token_ids", "finish_reason")
    found = {name: getattr(output, name) for name in names}
    if output.logprobs is not None:
        found["logprobs"] = [asdict(one) for one in output.logprobs]
    return found


def _embed(session: Any, texts: list[str], arguments: argparse.Namespace) -> None:
    given = _files(texts) if arguments.image else texts
    chosen = {} if arguments.image else {"adapter": arguments.adapter}
    embeddings = session.embed(given, **chosen)
    if arguments.json:
        kind = "image" if arguments.image else "text"
        outputs = [
            {kind: t, "embedding": row.tolist()} for t, row in zip(texts, embeddings, strict=True)
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
    given = _pairs(texts, arguments.pair) if arguments.pair else texts
    found = session.classify(given, adapter=arguments.adapter)
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


def _recognize(session: Any, images: list[str], arguments: argparse.Namespace) -> None:
    labels = [arguments.label] if arguments.label else []
    found = session.classify(_files(images), *labels)
    if arguments.json:
        outputs = [
            {"image": image, "scores": [asdict(score) for score in scores]}
            for image, scores in zip(images, found, strict=True)
        ]
        print_json({"outputs": outputs})
        return
    rows = [
        [image if not place else "", one.label, f"{one.score:.4f}"]
        for image, scores in zip(images, found, strict=True)
        for place, one in enumerate(scores[:_BEST])
    ]
    print(table(rows, ["image", "label", "score"]))


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
    found = session.classify(texts, adapter=arguments.adapter)
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


#: What runs a package, by what it reads and answers.
_RUNS: dict[tuple[str, str], Callable[[Any, list[str], argparse.Namespace], None]] = {
    ("text", "logits"): _generate,
    ("text", "embeddings"): _embed,
    ("text", "scores"): _classify,
    ("image", "logits"): _write_of_pictures,
    ("image", "embeddings"): _embed,
    ("image", "scores"): _recognize,
}


# --- serve -------------------------------------------------------------------------------------


def serve_command(arguments: argparse.Namespace) -> None:
    """Serve a package until interrupted."""
    from qeff_zoo import serving
    from qeff_zoo.runtime import open_session

    _check_role(arguments)
    package = usable_package(arguments.package)
    key = arguments.api_key
    choices = serving.Choices(
        name=arguments.model_name or package.name,
        fingerprint=package.build_key,
        api_key=os.environ.get("QEFF_ZOO_API_KEY") or None if key is None else key,
        max_queue=arguments.max_queue,
        shutdown_timeout=arguments.shutdown_timeout,
        prefill_from=tuple(arguments.prefill_from),
        image_hosts=arguments.allow_image_url,
        allow_adapters=tuple(arguments.allow_adapters),
        allowed_hosts=(arguments.host, *arguments.allowed_hosts),
        allowed_origins=arguments.allowed_origins,
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
            package,
            threads=arguments.threads,
            prefixes=_prefixes(arguments),
            blocks=arguments.blocks,
            **_speculation(arguments),
        )
        for given in arguments.lora_modules:
            _load_adapter(session, given, "--lora-modules")
        if arguments.role == "prefill":
            serving.serve_prefills(session, listener, choices.api_key, announce)
        else:
            serving.serve(session, listener, choices, announce)


def _check_role(arguments: argparse.Namespace) -> None:
    decodes = arguments.role == "decode"
    if decodes != bool(arguments.prefill_from):
        raise ServingError(
            f"Cannot serve with --role {arguments.role} and {len(arguments.prefill_from)} --prefill-from; expected "
            "prefill servers for --role decode, and for no other. Give both, or neither."
        )


def serve_args_command(arguments: argparse.Namespace) -> None:
    """Print the commands that serve a package with vllm-qaic, one per line."""
    from qeff_zoo.api import find_package
    from qeff_zoo.targets.qaic.serve_args import serve_args

    decode = find_package(arguments.decode_package) if arguments.decode_package else None
    needed = serve_args(find_package(arguments.package), decode)
    if arguments.json:
        print_json(needed.as_dict())
    else:
        print(*needed.commands, sep="\n")
