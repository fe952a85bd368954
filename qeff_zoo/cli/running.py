# SPDX-License-Identifier: Apache-2.0
"""Commands that run packages: `run`, `serve` and `serve-args`."""

import argparse
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.applicable import no_input, refuse_inapplicable, task_of
from qeff_zoo.cli.generation_options import (
    add_acceptance,
    add_adapter,
    add_generation_config,
    add_prefix_cache,
    add_sampling,
    add_template,
    generation_choices,
    load_adapter,
)
from qeff_zoo.cli.inputs import check_outputs, usable_package
from qeff_zoo.cli.options import (
    add_draft,
    add_package,
    add_threads,
    any_hosts,
    command,
    hosts,
    json_object,
    not_empty,
    origins,
    pixels,
    point,
)
from qeff_zoo.cli.serve_config import add_config, with_config
from qeff_zoo.contract.commands import INPUTS
from qeff_zoo.disk.text_files import lines_of, read_text
from qeff_zoo.errors import PackageError, ServingError
from qeff_zoo.terminal.printing import print_json

if TYPE_CHECKING:
    from qeff_zoo.package import Package
    from qeff_zoo.serving import ServerOptions

# --- run ---------------------------------------------------------------------------------------


def run_command(arguments: argparse.Namespace) -> None:
    """Run a package on prompts, texts, images or recordings."""
    from qeff_zoo.api import find_package

    files = {kind: getattr(arguments, kind) for kind in INPUTS if kind != "text"}
    inputs = {"text": _prompts(arguments), **files}
    # Without any input, a package is not pulled: the command fails.
    find = usable_package if any(inputs.values()) else find_package
    package = find(arguments.package)
    task = task_of(package)
    options = refuse_inapplicable("run", task, arguments)
    if not inputs[task.reads]:
        raise no_input(task, arguments)
    check_outputs(task, inputs[task.reads], arguments.output)
    from qeff_zoo.sessions import open_session

    run = task.commands.run()(task.name, inputs["text"], arguments)
    chosen = generation_choices(arguments) if "prefix_cache_bytes" in options else {}
    session = open_session(
        package, threads=arguments.threads, block_attention=bool(arguments.document), **chosen
    )
    if arguments.adapter is not None:
        arguments.adapter = load_adapter(session, arguments.adapter, "--adapter")
    run(session)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    prompts: list[str] = [*arguments.prompt, *arguments.question]
    if arguments.prompts_file is not None:
        prompts += lines_of(read_text(arguments.prompts_file))
    return prompts


# --- serve -------------------------------------------------------------------------------------


def serve_command(arguments: argparse.Namespace) -> None:
    """Serve packages until interrupted; options and address are checked before a package is built or loaded."""
    logging.basicConfig(level=arguments.log_level.upper(), format="%(levelname)s: %(message)s")
    _check_role(arguments)
    choices = _server_options(arguments)
    with _listening(arguments, choices) as listener:
        (_serve_several if arguments.others else _serve_one)(arguments, choices, listener)


def _serve_one(
    arguments: argparse.Namespace, choices: "ServerOptions", listener: socket.socket
) -> None:
    from qeff_zoo import serving
    from qeff_zoo.sessions import open_session

    usual, package = _named(arguments.package, build=arguments.build)
    options = refuse_inapplicable("serve", task_of(package), arguments)
    name, *aliases = arguments.model_name or [usual]
    choices = replace(choices, name=name, aliases=tuple(aliases), fingerprint=package.build_key)
    own = choices if arguments.chat_template is None else replace(choices, tool_parser=None)
    serving.check_package(name, package, own)
    chosen = generation_choices(arguments) if "prefix_cache_bytes" in options else {}
    session = open_session(
        package, threads=arguments.threads, block_attention=arguments.block_attention, **chosen
    )
    for given in arguments.lora_modules:
        load_adapter(session, given, "--lora-modules")
    _set_template(session, arguments)
    announce = _announcer(arguments, choices.name)
    if arguments.role == "prefill":
        serving.serve_prefills(session, listener, choices.api_key, announce)
    else:
        serving.serve(session, listener, choices, announce)


def _set_template(session: Any, arguments: argparse.Namespace) -> None:
    """Set the chat template of a server, and the variables of requests without them."""
    from qeff_zoo.runtime.text.chat_template import ChatTemplate, special_tokens

    given, defaults = arguments.chat_template, arguments.default_chat_template_kwargs or {}
    if given is None and not defaults:
        return
    known = session.chat_template.sources if session.chat_template else {}
    if given is None:
        sources: Any = known
    elif Path(given).is_file():
        sources = read_text(Path(given))
    elif given in known:
        sources = known[given]
    else:
        raise ServingError(
            f"--chat-template is {given!r}; expected a file, or one of the package's templates {sorted(known)}. "
            "Correct it, or leave it out."
        )
    if not sources:
        raise ServingError(
            f"Package {str(session.folder)!r} has no chat template, and --default-chat-template-kwargs is given; "
            "expected one. Leave it out, or add --chat-template FILE."
        )
    session.chat_template = ChatTemplate(sources, special_tokens(session.folder), defaults)


def _serve_several(
    arguments: argparse.Namespace, choices: "ServerOptions", listener: socket.socket
) -> None:
    """Serve several packages, each under its name, or under NAME of NAME=PACKAGE."""
    from qeff_zoo import serving

    alone = (
        *("model_name", "lora_modules", "allow_adapters", "prefill_from", "draft"),
        *("chat_template", "default_chat_template_kwargs"),
    )
    if given := [name for name in alone if getattr(arguments, name)]:
        flag = given[0].replace("_", "-")
        raise ServingError(
            f"--{flag} is given, and there are {1 + len(arguments.others)} packages; expected one package with this "
            "flag. Leave it out, or serve that package alone."
        )
    packages: dict[str, Any] = {}
    for reference in (arguments.package, *arguments.others):
        name, package = _named(reference, build=arguments.build)
        if name in packages:
            raise ServingError(
                f"Two packages have the model name {name!r}; expected different names. Name one of them: NAME=PACKAGE."
            )
        serving.check_package(name, package, choices)
        packages[name] = (package, _opener(package, arguments))
    serving.serve_several(packages, listener, choices, _announcer(arguments, ", ".join(packages)))


def _named(reference: str, *, build: bool) -> tuple[str, "Package"]:
    """Return the model name and the package of PACKAGE or NAME=PACKAGE."""
    name, equals, named = reference.partition("=")
    if equals and name and named and not Path(reference).exists():
        return name, _served(named, build=build)
    package = _served(reference, build=build)
    return package.name, package


def _opener(package: "Package", arguments: argparse.Namespace) -> Callable[[], Any]:
    """Return a function that opens a package with the options that apply to its task."""
    from qeff_zoo.sessions import open_session

    chosen: dict[str, Any] = {}
    if "prefix_cache_bytes" in refuse_inapplicable("serve", task_of(package), arguments):
        chosen = generation_choices(arguments)
        if arguments.prefix_cache_dir:  # a folder is for one package
            own = Path(arguments.prefix_cache_dir) / package.build_key
            chosen["prefixes"] = replace(chosen["prefixes"], folder=str(own))
    return partial(
        open_session,
        package,
        threads=arguments.threads,
        block_attention=arguments.block_attention,
        **chosen,
    )


def _served(reference: str, *, build: bool) -> "Package":
    """Find a package to serve; build it from a model, with its defaults, if there is none and `build` is set."""
    from qeff_zoo.api import build as build_package

    try:
        return usable_package(reference)
    except PackageError as error:
        if build:
            return build_package(reference)
        raise PackageError(f"{error} With --build, `serve` builds a model first.") from error


def _server_options(arguments: argparse.Namespace) -> "ServerOptions":
    """Return the options of a server, without the names and the fingerprint of its model."""
    from qeff_zoo import serving

    return serving.ServerOptions(
        memory_budget=arguments.memory_budget,
        idle_timeout=arguments.idle_timeout,
        api_keys=_api_keys(arguments),
        request_log=arguments.request_log,
        page=not arguments.no_page,
        tls=_certificate(arguments),
        max_queue=arguments.max_queue,
        shutdown_timeout=arguments.shutdown_timeout,
        prefill_from=tuple(arguments.prefill_from),
        generation_config=arguments.generation_config == "auto",
        image_hosts=arguments.allow_image_url,
        allow_adapters=tuple(arguments.allow_adapters),
        allowed_hosts=(arguments.host, *arguments.allowed_hosts),
        allowed_origins=arguments.allowed_origins,
        tool_parser=arguments.tool_parser,
        reasoning_parser=arguments.reasoning_parser,
        strict_parameters=arguments.strict_parameters,
        shares_prefixes=arguments.share_prefix_cache,
        tool_strict_level=arguments.tool_strict_level,
        disable_additional_properties=arguments.disable_additional_properties,
        quiet_paths=arguments.quiet_paths,
        keep_alive_timeout=arguments.keep_alive_timeout,
        otlp_traces_endpoint=arguments.otlp_traces_endpoint,
    )


def _announcer(arguments: argparse.Namespace, name: str) -> Callable[[str], None]:
    def announce(url: str) -> None:
        if arguments.json:
            print_json({"url": url, "model": name})
        else:
            print(url)
        sys.stdout.flush()
        has_page = url.startswith("http") and not arguments.no_page
        page = f", with a page at {url.removesuffix('v1')}" if has_page else ""
        print(f"Serving {name}{page}; Ctrl-C ends it.", file=sys.stderr)

    return announce


@contextmanager
def _listening(arguments: argparse.Namespace, choices: "ServerOptions") -> Iterator[socket.socket]:
    """Bind the address of a server."""
    from qeff_zoo import serving

    listening = (
        serving.bind(arguments.host, arguments.port)
        if arguments.uds is None
        else serving.bind_unix(Path(arguments.uds))
    )
    with listening as listener:
        if choices.api_key is None and not serving.is_local(listener):
            print(
                f"Anyone who reaches {arguments.host} may use this server: it has no --api-key.",
                file=sys.stderr,
            )
        yield listener


def _api_keys(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the keys of the flags, else that of the variable."""
    keys = [*arguments.api_key]
    if arguments.api_key_file is not None:
        lines = read_text(Path(arguments.api_key_file)).splitlines()
        more = [*filter(None, map(str.strip, lines))]
        if not more:
            raise ServingError(
                f"The file {arguments.api_key_file!r} has no key; expected one in each line. Add one, or leave out "
                "--api-key-file."
            )
        keys += more
    usual = os.environ.get("QEFF_ZOO_API_KEY")
    return tuple(keys or ([usual] if usual else []))


def _certificate(arguments: argparse.Namespace) -> tuple[str, str] | None:
    chain, key = arguments.ssl_certfile, arguments.ssl_keyfile
    if (chain is None) != (key is None):
        raise ServingError(
            "One of --ssl-certfile and --ssl-keyfile is given; expected both or neither. Add the other."
        )
    return None if chain is None else (chain, key)


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


def _add_grammar(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "structured output", "constrains the generated text"
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--json-schema",
        type=Path,
        metavar="FILE",
        help="JSON that matches the JSON schema in this file",
    )
    group.add_argument(
        "--regex", metavar="PATTERN", help="text that matches this regular expression"
    )
    group.add_argument(
        "--choice",
        action="append",
        metavar="TEXT",
        help="one of these texts; repeatable, once for each text",
    )
    group.add_argument(
        "--grammar",
        type=Path,
        metavar="FILE",
        help="text of the grammar in this file (Lark syntax)",
    )


def _add_audio_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "audio",
        nargs="*",
        metavar="RECORDING",
        help="audio file, such as speech.wav: to transcribe or classify, or an input of --prompt",
    )
    parser.add_argument(
        "--timestamps",
        action="store_true",
        help="print timestamps of words (CTC models) or of segments (Whisper models)",
    )
    parser.add_argument(
        "--word-timestamps",
        action="store_true",
        help="print word-level timestamps (Whisper models)",
    )
    parser.add_argument(
        "--translate", action="store_true", help="translate speech into English (Whisper models)"
    )
    parser.add_argument(
        "--target-language",
        metavar="CODE",
        help="target language of speech translation, for models with several",
    )
    parser.add_argument(
        "--temperature-fallback",
        action="store_true",
        help="decode suspicious windows again at higher temperatures, and skip likely silence (Whisper models)",
    )


def _add_run(commands: Any) -> None:
    parser = command(
        commands, "run", "run a package on prompts, texts, images or audio", applicable=True
    )
    add_package(parser)
    _add_audio_options(parser)
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="spoken language of audio, such as en (default: detected by multilingual models), or target language of "
        "a translation, such as fra_Latn or fr (default: the checkpoint's)",
    )
    parser.add_argument(
        "--source-language",
        metavar="CODE",
        help="source language of a translation (default: the tokenizer's)",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="prompt, or input text; repeatable",
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="image file, or its URL; repeatable",
    )
    parser.add_argument(
        "--video",
        action="append",
        default=[],
        metavar="PATH",
        help="video: file (MP4, WebM, GIF, …), its URL, or folder of frames; repeatable",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="file to write the result to, such as depth.png, cat.png or speech.wav; repeatable, once for each input",
    )
    parser.add_argument(
        "--negative-prompt",
        metavar="TEXT",
        help="text that an image is guided away from (default: none)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps of an image (default: the pipeline's)"
    )
    parser.add_argument(
        "--guidance-scale",
        type=float,
        metavar="X",
        help="scale of an image's guidance by its prompt (default: the pipeline's)",
    )
    parser.add_argument(
        "--guidance-scale-2",
        type=float,
        metavar="X",
        help="scale of a video's guidance in the steps of the second transformer (default: --guidance-scale)",
    )
    parser.add_argument(
        "--true-cfg-scale",
        type=float,
        metavar="X",
        help="scale of an image's guidance away from --negative-prompt (Flux models; default: 1, none)",
    )
    parser.add_argument(
        "--height",
        type=int,
        metavar="N",
        help="height of an image in pixels (default: the model's)",
    )
    parser.add_argument(
        "--width", type=int, metavar="N", help="width of an image in pixels (default: the model's)"
    )
    parser.add_argument(
        "--frames", type=int, metavar="N", help="number of frames of a video (default: the model's)"
    )
    parser.add_argument(
        "--fps",
        type=float,
        metavar="X",
        help="frames per second of the file of a video (default: the model's)",
    )
    parser.add_argument(
        "--mask",
        metavar="FILE",
        help="mask of the image that is changed, or its URL: white where it is drawn anew (default: all of it)",
    )
    parser.add_argument(
        "--strength",
        type=float,
        metavar="X",
        help="share of the steps, to 1, by which an image is changed (default: the pipeline's)",
    )
    parser.add_argument(
        "--mask-blur",
        type=float,
        metavar="PIXELS",
        help="radius that the edges of --mask are blurred by (default: none)",
    )
    parser.add_argument(
        "--voice", type=int, metavar="N", help="number of the speaker of a text (default: 0)"
    )
    parser.add_argument(
        "--speed", type=float, metavar="X", help="factor of the speed of speech (default: 1)"
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="TEXT",
        help="candidate label for zero-shot image classification; repeatable",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="SHARE",
        help="score from 0 to 1 that detected objects (default: 0.5), segments (default: 0.9) or keypoints (default: "
        "any) exceed",
    )
    parser.add_argument(
        "--box",
        action="append",
        default=[],
        type=pixels,
        metavar="X,Y,WIDTH,HEIGHT",
        help="box of a person in pixels of the image (default: the whole image), or of an object whose mask is "
        "generated; repeatable",
    )
    parser.add_argument(
        "--point",
        action="append",
        default=[],
        type=point,
        metavar="X,Y",
        help="point in pixels of the image, of an object whose mask is generated; repeatable",
    )
    parser.add_argument(
        "--negative-point",
        action="append",
        default=[],
        type=point,
        metavar="X,Y",
        help="point outside that object; repeatable",
    )
    parser.add_argument(
        "--dataset-index",
        type=int,
        metavar="N",
        help="number of the data set whose experts find keypoints (ViTPose++ models; default: 0)",
    )
    parser.add_argument(
        "--subtask",
        metavar="NAME",
        help="kind of segmentation: panoptic, instance or semantic (default: the first of these that the model "
        "supports)",
    )
    parser.add_argument(
        "--mask-threshold",
        type=float,
        metavar="SHARE",
        help="probability from 0 to 1 from which on a pixel belongs to a mask (default: 0.5)",
    )
    parser.add_argument(
        "--overlap-mask-area-threshold",
        type=float,
        metavar="SHARE",
        help="share from 0 to 1 of its mask that a segment exceeds, without pixels of better segments (default: 0.5)",
    )
    parser.add_argument(
        "--prompts-file", type=Path, metavar="FILE", help="file of prompts, one per line"
    )
    parser.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="name of the model's prompt that precedes every text (default: the model's default prompt)",
    )
    parser.add_argument(
        "--prompt-prefix",
        metavar="TEXT",
        help="text that precedes every embedded text in place of the model's prompt; '' for none",
    )
    parser.add_argument(
        "--dimensions",
        type=int,
        metavar="N",
        help="number of the first values of each embedding (default: the model's)",
    )
    parser.add_argument(
        "--aggregation",
        choices=("none", "simple", "first", "average", "max"),
        help="print entities, not tokens: neighbours of one label, whose words have the label of each token "
        "(simple), of the first one, of the mean scores or of the best one; none for single tokens",
    )
    parser.add_argument(
        "--targets",
        action="append",
        default=[],
        metavar="TEXT",
        help="token that may fill a mask; repeatable (default: any token)",
    )
    parser.add_argument(
        "--question",
        action="append",
        default=[],
        metavar="TEXT",
        help="question about a context, as --prompt; repeatable",
    )
    parser.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="TEXT",
        help="text with the answers: one for each question, or one for all; repeatable",
    )
    parser.add_argument(
        "--context-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="file of such a text; repeatable",
    )
    parser.add_argument(
        "--doc-stride",
        type=int,
        metavar="N",
        help="number of tokens that two windows of a long context share (default: 128, or less for small windows)",
    )
    parser.add_argument(
        "--max-answer-len",
        type=int,
        metavar="N",
        help="largest number of tokens of an answer (default: 15)",
    )
    parser.add_argument(
        "--impossible",
        action="store_true",
        help="let the empty text be an answer, for questions without one",
    )
    parser.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="TEXT",
        help="second text of a pair, for rerankers: one for each prompt, or several for one prompt; repeatable",
    )
    parser.add_argument(
        "--generation-len",
        type=int,
        metavar="N",
        help="largest number of tokens to generate (default: to the end of the context)",
    )
    parser.add_argument(
        "--chat", action="store_true", help="apply the chat template to each prompt"
    )
    add_template(parser)
    add_adapter(parser)
    parser.add_argument(
        "--document",
        action="append",
        default=[],
        metavar="TEXT",
        help="document before the prompt, computed independently (block attention); repeatable",
    )
    add_sampling(parser)
    _add_grammar(parser)
    add_draft(parser)
    add_acceptance(parser)
    add_prefix_cache(parser)
    add_threads(parser)


def _add_allowed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allowed-hosts",
        type=any_hosts,
        default=(),
        metavar="HOST,...",
        help="host names of the server for clients, besides its address and localhost; * for any",
    )
    parser.add_argument(
        "--allowed-origins",
        type=origins,
        default=(),
        metavar="ORIGIN,...",
        help="allowed origins of web pages (CORS), such as https://chat.example; * for any (default: none)",
    )
    parser.add_argument(
        "--allow-adapters",
        nargs="+",
        default=[],
        metavar="DIR|REPO",
        help="folders and Hub repositories that clients may load LoRA adapters from, and unload, without your token "
        "(default: none)",
    )
    parser.add_argument(
        "--allow-image-url",
        type=hosts,
        default=(),
        metavar="HOST,...",
        help="hosts with public addresses that images and videos may be fetched from for clients (default: none)",
    )


def _add_operation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chat-template",
        metavar="FILE|NAME",
        help="chat template in this file, in place of the package's, or the name of one of the package's (default: its "
        "default one)",
    )
    parser.add_argument(
        "--default-chat-template-kwargs",
        type=json_object,
        metavar="JSON",
        help="variables of the chat template in requests without them, such as '{\"enable_thinking\": false}'",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="least level of the messages on stderr, besides the request log (default: warning)",
    )
    parser.add_argument(
        "--quiet-paths",
        "--disable-access-log-for-endpoints",
        type=_paths,
        default=("/health", "/ping", "/metrics"),
        metavar="PATH,...",
        help="paths whose successful requests have no line in the request log; '' for none (default: "
        "/health,/ping,/metrics)",
    )
    parser.add_argument(
        "--keep-alive-timeout",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds until an idle connection ends; longer than that of a proxy before the server (default: 5)",
    )
    parser.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="collector of OpenTelemetry's traces by OTLP over HTTP, such as http://localhost:4318/v1/traces (default: "
        "none)",
    )


def _paths(text: str) -> tuple[str, ...]:
    paths = tuple(filter(None, map(str.strip, text.split(","))))
    if wrong := [path for path in paths if not path.startswith("/")]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no path; expected one such as /health")
    return paths


def _add_serve(commands: Any) -> None:
    parser = command(
        commands,
        "serve",
        "serve packages over OpenAI's, Anthropic's and ollama's APIs",
        applicable=True,
    )
    parser.expand = partial(with_config, parser=parser)
    add_package(parser)
    add_config(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine alone)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        metavar="N",
        help="port to listen on; 0 for any free one (default: 8000)",
    )
    parser.add_argument(
        "others",
        nargs="*",
        default=[],
        metavar="PACKAGE",
        help="further packages, each loaded on its first request; NAME=PACKAGE sets a model name",
    )
    parser.add_argument(
        "--build", action="store_true", help="build a model that has no package, with its defaults"
    )
    parser.add_argument(
        "--memory-budget",
        type=int,
        metavar="BYTES",
        help="memory of all loaded packages, the least recently used of which are unloaded (default: what is free)",
    )
    parser.add_argument(
        "--idle-timeout",
        type=float,
        metavar="S",
        help="seconds without requests after which one of several packages is unloaded (default: never)",
    )
    parser.add_argument(
        "--uds",
        metavar="PATH",
        help="Unix socket to listen on, for processes of this user, instead of an address",
    )
    parser.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="API key for clients; repeatable (default: the variable QEFF_ZOO_API_KEY)",
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="file with an API key in each line")
    parser.add_argument(
        "--model-name",
        "--served-model-name",
        nargs="+",
        type=not_empty,
        metavar="NAME",
        help="model name for clients, and further ones (default: the package's name)",
    )
    parser.add_argument(
        "--request-log",
        choices=("text", "json", "none"),
        default="text",
        help="form of the log on stderr, a line for each request, without its content (default: text)",
    )
    parser.add_argument(
        "--no-page", action="store_true", help="serve no page for people at / (default: a page)"
    )
    parser.add_argument(
        "--strict-parameters",
        action="store_true",
        help="refuse parameters and tools that change nothing here (default: ignore, count and log them)",
    )
    parser.add_argument(
        "--ssl-certfile", metavar="FILE", help="certificate chain in PEM, for https (default: http)"
    )
    parser.add_argument("--ssl-keyfile", metavar="FILE", help="its private key, in PEM")
    parser.add_argument(
        "--lora-modules",
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="LoRA adapters that clients select by name, as a model, for packages built with --max-loras",
    )
    parser.add_argument(
        "--share-prefix-cache",
        action="store_true",
        help="share the prefix cache among all API keys, which reveals equal prompts (default: a part for each key)",
    )
    add_generation_config(parser)
    _add_operation(parser)
    _add_allowed(parser)
    parser.add_argument(
        "--tool-parser",
        metavar="NAME",
        help="format of tool calls, such as hermes; none for no tools (default: that of the chat template)",
    )
    parser.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        help="format of reasoning, such as think; none for plain text (default: that of the chat template)",
    )
    parser.add_argument(
        "--tool-strict-level",
        choices=("auto", "function", "parameter"),
        default="auto",
        help="what holds for calls that a model makes by itself of functions that are not strict: nothing (auto), that "
        "the function exists and its arguments are an object (function), or its schema (parameter); default: auto",
    )
    parser.add_argument(
        "--disable-additional-properties",
        action="store_true",
        help="objects of JSON Schemas without additionalProperties have no further keys (default: as JSON Schema says)",
    )
    add_draft(parser)
    add_acceptance(parser)
    add_threads(parser)
    parser.add_argument(
        "--max-queue",
        type=int,
        default=1024,
        metavar="N",
        help="largest number of requests waiting for a slot (default: 1024)",
    )
    add_prefix_cache(parser)
    parser.add_argument(
        "--block-attention",
        action="store_true",
        help="accept documents in requests, computed once and independently (block attention)",
    )
    parser.add_argument(
        "--role",
        choices=("both", "prefill", "decode"),
        default="both",
        help="role in disaggregated serving: prefill for decode servers, or decode with prefill servers (default: "
        "both)",
    )
    parser.add_argument(
        "--prefill-from",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="prefill server, with --role decode; repeatable",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds for running requests to finish after the server is stopped (default: 20)",
    )


def _add_serve_args(commands: Any) -> None:
    parser = command(
        commands,
        "serve-args",
        "print the vllm-qaic commands for serving a package of target qaic or qnn-aic",
    )
    add_package(parser)
    parser.add_argument(
        "decode_package",
        nargs="?",
        metavar="DECODE_PACKAGE",
        help="package built with --decode-only, with a PACKAGE built with --prefill-only",
    )


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_run, {"run": run_command}),
    (_add_serve, {"serve": serve_command}),
    (_add_serve_args, {"serve-args": serve_args_command}),
)
