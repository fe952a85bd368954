# SPDX-License-Identifier: Apache-2.0
"""A package at work: `run`, `serve` and `serve-args`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from qeff_zoo.cli.applicable import refuse_inapplicable, task_of
from qeff_zoo.cli.inputs import drafting, usable_package
from qeff_zoo.cli.options import (
    add_draft,
    add_package,
    add_threads,
    any_hosts,
    command,
    hosts,
    origins,
)
from qeff_zoo.disk.text_files import lines_of, read_text
from qeff_zoo.errors import AdapterError, GenerationError, ServingError
from qeff_zoo.terminal.printing import print_json

# --- run ---------------------------------------------------------------------------------------


def run_command(arguments: argparse.Namespace) -> None:
    """Run a package on prompts, texts, images or recordings."""
    prompts = _prompts(arguments)
    if not prompts and not arguments.image and not arguments.audio:
        raise GenerationError(
            "No prompt was given, expected at least one. Use --prompt TEXT or --prompts-file FILE; for a package that "
            "reads pictures --image FILE, and name recordings for one that reads those."
        )
    from qeff_zoo.runtime import open_session  # what is not installed is missed before a pull

    package = usable_package(arguments.package)
    task = task_of(package)
    options = refuse_inapplicable("run", task, arguments)
    run = task.commands.run()(task.name, prompts, arguments)
    chosen = _generation(arguments) if "prefix_cache_bytes" in options else {}
    session = open_session(
        package, threads=arguments.threads, block_attention=bool(arguments.document), **chosen
    )
    if arguments.adapter is not None:
        arguments.adapter = _load_adapter(session, arguments.adapter, "--adapter")
    run(session)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    prompts: list[str] = list(arguments.prompt)
    if arguments.prompts_file is not None:
        prompts += lines_of(read_text(arguments.prompts_file))
    return prompts


def _load_adapter(session: Any, given: str, flag: str) -> str:
    """Load what a flag says, `NAME=DIR`; return the name."""
    name, equals, source = given.partition("=")
    if not (name and equals and source):
        raise AdapterError(
            f"{flag} is {given!r}; expected NAME=DIR, such as sql=adapters/sql. Give the adapter a name."
        )
    session.adapters.load(name, source)
    return name


def _generation(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how a session that generates drafts tokens, and what it keeps of prompts."""
    from qeff_zoo.runtime import PrefixCacheOptions

    return {
        "draft": drafting(arguments),
        "acceptance": arguments.acceptance,
        "prefixes": PrefixCacheOptions(
            bytes=arguments.prefix_cache_bytes,
            answers=arguments.prefix_cache_answers,
            folder=arguments.prefix_cache_dir,
        ),
    }


# --- serve -------------------------------------------------------------------------------------


def serve_command(arguments: argparse.Namespace) -> None:
    """Serve a package until interrupted."""
    from qeff_zoo import serving
    from qeff_zoo.runtime import open_session

    _check_role(arguments)
    package = usable_package(arguments.package)
    options = refuse_inapplicable("serve", task_of(package), arguments)
    key = arguments.api_key
    choices = serving.ServerOptions(
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
        chosen = _generation(arguments) if "prefix_cache_bytes" in options else {}
        session = open_session(
            package, threads=arguments.threads, block_attention=arguments.block_attention, **chosen
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


# --- arguments ----------------------------------------------------------------------------------


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling", "without these, the most likely token is taken each time"
    )
    for name, kind, text in (
        ("temperature", float, "draw tokens at random; 1 is the model's own distribution"),
        ("top-k", int, "draw from the N most likely tokens"),
        ("top-p", float, "draw from the most likely tokens that together reach this probability"),
        ("min-p", float, "draw from tokens at least X times as likely as the most likely one"),
        (
            "repetition-penalty",
            float,
            "penalize tokens of the prompt and the answer by this factor; 1 is none",
        ),
        (
            "presence-penalty",
            float,
            "subtract this from the logits of tokens that the answer already has",
        ),
        ("frequency-penalty", float, "the same, for each time that the answer has the token"),
        ("seed", int, "the same seed gives the same answer"),
        (
            "logprobs",
            int,
            "with --json, each token's log-probability, and the N most likely tokens'",
        ),
    ):
        group.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )


def _add_grammar(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "form", "what the answer must be"
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="JSON of the schema that the file has"
    )
    group.add_argument("--regex", metavar="PATTERN", help="what a regular expression matches")
    group.add_argument(
        "--choice",
        action="append",
        metavar="TEXT",
        help="one of these texts; given for each of them",
    )
    group.add_argument(
        "--grammar",
        type=Path,
        metavar="FILE",
        help="of the grammar that the file has, in Lark's syntax",
    )


def _add_prefix_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix-cache-bytes",
        type=int,
        metavar="N",
        help="memory for the beginnings of prompts; 0 for none (default: 128 MiB)",
    )
    parser.add_argument(
        "--prefix-cache-answers",
        action="store_true",
        help="keep answers there too, for the next turn of a chat; the last bits of logits then depend on it",
    )
    parser.add_argument(
        "--prefix-cache-dir",
        type=Path,
        metavar="DIR",
        help="keep it in this folder for later runs as well; whoever reads the folder reads the prompts",
    )


def _add_acceptance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--acceptance",
        choices=["exact", "rejection"],
        default="exact",
        help="which tokens of a draft package count where answers are drawn at random: those that the request draws "
        "too (default), so that a seed gives the same answer as without drafts; or more of them, by min(1, p/q)",
    )


def _add_sound(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "audio",
        nargs="*",
        metavar="RECORDING",
        help="of speech, such as speech.wav, to be written down; or that --prompt is about",
    )
    parser.add_argument(
        "--timestamps",
        action="store_true",
        help="of a recording, each word, or of some models each segment, with its time",
    )
    parser.add_argument(
        "--word-timestamps",
        action="store_true",
        help="of a recording, each word with its time, of models that tell those of segments as well",
    )
    parser.add_argument(
        "--translate", action="store_true", help="of a recording, what is said in English"
    )
    parser.add_argument(
        "--target-language",
        metavar="CODE",
        help="of a recording, what is said in that language, of models that translate into several",
    )
    parser.add_argument(
        "--temperature-fallback",
        action="store_true",
        help="of a recording, draw again what looks wrong, at rising temperatures, and leave out likely silence",
    )


def _add_run(commands: Any) -> None:
    parser = command(
        commands, "run", "run a package on prompts, texts or recordings", applicable=True
    )
    add_package(parser)
    _add_sound(parser)
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="of a recording, such as en (default: detected, where a model knows several); of a translation, such as "
        "fra_Latn or fr (default: what the checkpoint says)",
    )
    parser.add_argument(
        "--source-language",
        metavar="CODE",
        help="of a text to be translated (default: what its tokenizer takes it for)",
    )
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="may be given several times"
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="picture, or its URL, for a package that reads those; may be given several times",
    )
    parser.add_argument(
        "--video",
        action="append",
        default=[],
        metavar="PATH",
        help="animation (GIF, WebP, APNG), its URL, or folder of frames, for a package that reads them; repeatable",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="TEXT",
        help="what pictures may show, to be scored; may be given several times",
    )
    parser.add_argument("--prompts-file", type=Path, metavar="FILE", help="one prompt per line")
    parser.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="TEXT",
        help="text to read together with the prompt, as rerankers do; one for each prompt, or many for one",
    )
    parser.add_argument(
        "--generation-len", type=int, metavar="N", help="tokens to generate (default: to the end)"
    )
    parser.add_argument(
        "--chat", action="store_true", help="apply the chat template to each prompt"
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME=DIR",
        help="run with an adapter (LoRA) that peft wrote, a folder or a Hub id, of a package that was built with "
        "--max-loras",
    )
    parser.add_argument(
        "--document",
        action="append",
        default=[],
        metavar="TEXT",
        help="passage before the prompt, computed by itself whatever stands before it (block attention); may be given "
        "several times",
    )
    _add_sampling(parser)
    _add_grammar(parser)
    add_draft(parser)
    _add_acceptance(parser)
    _add_prefix_cache(parser)
    add_threads(parser)


def _add_allowed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allowed-hosts",
        type=any_hosts,
        default=(),
        metavar="HOST,...",
        help="names of the server for clients, besides its address and localhost; * for any",
    )
    parser.add_argument(
        "--allowed-origins",
        type=origins,
        default=(),
        metavar="ORIGIN,...",
        help="origins of web pages that may send requests, such as https://chat.example (CORS); * for any (default: "
        "none)",
    )
    parser.add_argument(
        "--allow-adapters",
        nargs="+",
        default=[],
        metavar="DIR|REPO",
        help="let clients load adapters from these folders and Hub repositories, without your token, and unload those "
        "again (default: from none)",
    )
    parser.add_argument(
        "--allow-image-url",
        type=hosts,
        default=(),
        metavar="HOST,...",
        help="fetch pictures and videos for clients from these hosts, at public addresses (default: from none)",
    )


def _add_serve(commands: Any) -> None:
    parser = command(commands, "serve", "serve a package over OpenAI's API", applicable=True)
    add_package(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine alone)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="0 for any free one (default: 8000)"
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="what clients must send (default: the variable QEFF_ZOO_API_KEY)",
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="the model's name for clients (default: the package's)"
    )
    parser.add_argument(
        "--lora-modules",
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="adapters (LoRA) that clients may ask for by name, as they ask for the model; of a package that was built "
        "with --max-loras",
    )
    _add_allowed(parser)
    add_draft(parser)
    _add_acceptance(parser)
    add_threads(parser)
    parser.add_argument(
        "--max-queue",
        type=int,
        default=1024,
        metavar="N",
        help="requests that may wait for a row (default: 1024)",
    )
    _add_prefix_cache(parser)
    parser.add_argument(
        "--block-attention",
        action="store_true",
        help="let clients give passages that are computed once, each by itself (block attention)",
    )
    parser.add_argument(
        "--role",
        choices=("both", "prefill", "decode"),
        default="both",
        help="run prompts for decode servers, or decode what prefill servers ran (default: both, by itself)",
    )
    parser.add_argument(
        "--prefill-from",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="of --role decode, a prefill server; may be given several times",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds that running requests have to finish when the server is stopped (default: 20)",
    )


def _add_serve_args(commands: Any) -> None:
    parser = command(
        commands,
        "serve-args",
        "print what vllm-qaic needs to serve a package of target qaic or qnn-aic",
    )
    add_package(parser)
    parser.add_argument(
        "decode_package",
        nargs="?",
        metavar="DECODE_PACKAGE",
        help="the package of --decode-only, beside one of --prefill-only",
    )


#: What adds the arguments of a command, or of several, and their handlers.
COMMANDS = (
    (_add_run, {"run": run_command}),
    (_add_serve, {"serve": serve_command}),
    (_add_serve_args, {"serve-args": serve_args_command}),
)
