# SPDX-License-Identifier: Apache-2.0
"""What is done with a package: `run`, `serve`, `bench`, `validate`, `inspect`."""

import argparse
from pathlib import Path
from typing import Any

from qeff_zoo.cli.arguments.options import (
    add_package,
    add_threads,
    any_hosts,
    command,
    hosts,
    origins,
)


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


def _add_speculate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--speculate",
        metavar="lookup|heads|PACKAGE",
        help="draft tokens and check several in one call: what followed the same words before, what heads say that the "
        "package was built with (--speculator), or the package of a smaller model; for a package built with "
        "--num-speculative-tokens",
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
        choices=["draw", "ratio"],
        default="draw",
        help="which tokens of a draft package count where answers are drawn at random: those that the request draws "
        "too (default), so that a seed gives the same answer as without drafts; or more of them, by min(1, p/q)",
    )


def _add_sound(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sound",
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
        "--fallback",
        action="store_true",
        help="of a recording, draw again what looks wrong, at rising temperatures, and leave out likely silence",
    )


def _add_run(commands: Any) -> None:
    parser = command(commands, "run", "run a package on prompts, texts or recordings")
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
        "--block",
        action="append",
        default=[],
        metavar="TEXT",
        help="passage before the prompt, computed by itself whatever stands before it (block attention); may be given "
        "several times",
    )
    _add_sampling(parser)
    _add_grammar(parser)
    _add_speculate(parser)
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
    parser = command(commands, "serve", "serve a package over OpenAI's API")
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
    _add_speculate(parser)
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
        "--blocks",
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


def _add_bench(commands: Any) -> None:
    parser = command(
        commands, "bench", "measure how fast a package generates, or writes down speech"
    )
    add_package(parser)
    many: dict[str, Any] = {"type": int, "nargs": "+", "default": [], "metavar": "N"}
    parser.add_argument("--prompt-len", **many, help="tokens in a prompt (default: 128)")
    parser.add_argument(
        "--generation-len",
        type=int,
        metavar="N",
        help="tokens to generate (default: 64), or of a window of speech at most",
    )
    parser.add_argument(
        "--batch-size", **many, help="requests at a time (default: 1, and all rows of the package)"
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="a picture of each prompt, of a package that reads them (default: one of noise, 448 x 448)",
    )
    parser.add_argument(
        "--sound",
        action="append",
        default=[],
        metavar="FILE",
        help="a recording of each prompt, or to be written down (default: noise that fills one window)",
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="of a recording that is written down (default: detected, where a model knows several)",
    )
    _add_speculate(parser)
    add_threads(parser)
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="measured runs (default: 3)"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="also draw speed by context and by batch; sizes that are left out then double up to the largest",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_validate(commands: Any) -> None:
    parser = command(
        commands,
        "validate",
        "compare a package, or a recipe's tiny models, with Hugging Face",
    )
    parser.add_argument(
        "package", metavar="PACKAGE|MODEL_TYPE", help="a package, or a recipe to try on tiny models"
    )
    parser.add_argument(
        "--checkpoint", metavar="MODEL", help="where the package's checkpoint is now"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="DIR",
        help="where an adapter that was merged into the package is now; may be given several times",
    )
    parser.add_argument("--target", help="of a recipe, what its tiny models are built for")
    parser.add_argument(
        "--record",
        action="store_true",
        help="write validated_models/ORG/NAME.json; for a recipe validated_models/_tiny/MODEL_TYPE.json, or with "
        "--target _targets/TARGET.json",
    )
    group = parser.add_argument_group("perplexity", "measured for a package, instead of the checks")
    group.add_argument(
        "--perplexity",
        type=Path,
        metavar="FILE",
        help="how well the package, and Hugging Face's model, predict this text",
    )
    group.add_argument(
        "--window", type=int, metavar="N", help="tokens seen at a time (default: the context)"
    )
    group.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="tokens from one window to the next (default: half a window)",
    )
    group.add_argument(
        "--batch-size",
        type=int,
        default=1,
        metavar="N",
        help="windows that Hugging Face's model runs at a time (default: 1); a package runs as many as it has rows",
    )
    group.add_argument("--graph", action="store_true", help="also the portable graph, in float32")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_inspect(commands: Any) -> None:
    parser = command(commands, "inspect", "explain a package")
    add_package(parser)
    parser.add_argument(
        "--verify", action="store_true", help="read every byte and compare it with its digest"
    )


#: The functions that add each command.
COMMANDS = (
    _add_run,
    _add_serve,
    _add_bench,
    _add_validate,
    _add_inspect,
)
