# SPDX-License-Identifier: Apache-2.0
"""argv -> what was asked: commands and their options, named as the Python parameters are.

Out: a namespace with `command`, such as "build" or "cache ls", and one attribute for each option.
"""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any

_EPILOG = "Run `qeff-zoo COMMAND --help` for the options of a command."


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="qeff-zoo",
        description="Build, validate and run compiled packages of Hugging Face models.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"qeff-zoo {version('qeff-zoo')}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_list, _add_show, _add_plan, _add_build, _add_export, _add_run, _add_serve, _add_bench,
        _add_validate, _add_inspect, _add_resolve, _add_pull, _add_lock, _add_repair, _add_bundle, _add_yank,
        _add_publish, _add_sign, _add_serve_args, _add_cache, _add_doctor, _add_new,
    ):  # fmt: skip
        add(commands)
    return parser


def _command(commands: Any, name: str, text: str, group: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=f"{group} {name}".strip())
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def _add_list(commands: Any) -> None:
    parser = _command(commands, "list", "list the architectures that have a recipe")
    parser.add_argument(
        "--models", action="store_true", help="list checkpoints instead, and what was run with each"
    )


def _add_show(commands: Any) -> None:
    parser = _command(commands, "show", "show what a recipe says")
    parser.add_argument("model_type")


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="Hub id (org/name) or folder of a checkpoint"
    )
    _add_axes(parser)


def _add_axes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--revision", help="branch, tag or commit of a Hub model")
    group = parser.add_argument_group("choices", "left out, the recipe makes them")
    group.add_argument("--target", help="what to compile for (default: ort)")
    group.add_argument("--task", help="Hub pipeline tag (default: what the checkpoint is for)")
    group.add_argument("--weights", help="fp32, int8 or int4 (default: fp32)")
    group.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="columns that share a scale of int8 and int4: 32, 64 or 128 (default: 32; larger is faster, less exact)",
    )
    group.add_argument("--profile", help="one of the recipe's shapes (default: latency)")
    for name, text in (
        ("prefill-seq-len", "prompt tokens taken by one call"),
        ("ctx-len", "prompt and generated tokens together"),
        ("batch-size", "rows of one call"),
        ("full-batch-size", "slots of continuous batching"),
    ):
        group.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for kind in ("prefill", "decode"):
        group.add_argument(
            f"--comp-ctx-lengths-{kind}",
            type=_integers,
            metavar="N,N",
            help=f"rows of the cache that a {kind} call looks at: the least that holds its tokens (default: all)",
        )
    group.add_argument(
        "--seq-lens", type=_integers, metavar="N,N", help="sequence lengths of an encoder"
    )
    group.add_argument(
        "--pooling", help="mean, cls, max or lasttoken (default: as the checkpoint says)"
    )
    group.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, default=None, help="unit embeddings"
    )
    group.add_argument(
        "--expanded-kv",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="retain every head's keys and values of latent attention, not the latents",
    )


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _add_plan(commands: Any) -> None:
    parser = _command(
        commands, "plan", "show every choice of a build, and who made it, without building"
    )
    _add_choices(parser)


def _add_build(commands: Any) -> None:
    parser = _command(commands, "build", "turn a checkpoint into a validated package")
    _add_choices(parser)
    parser.add_argument(
        "--no-validate", action="store_true", help="do not compare with Hugging Face"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--publish", metavar="REMOTE", help="also publish it to this Hub repository or remote"
    )
    _add_private(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_export(commands: Any) -> None:
    parser = _command(commands, "export", "write the portable ONNX graph of a model")
    _add_choices(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--graph-only", action="store_true", help="no weights; a config.json is enough"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_package(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "package", metavar="PACKAGE", help="folder, build key or model name of a package"
    )


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: physical cores)"
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling", "left out, the likeliest token is taken each time"
    )
    for name, kind, text in (
        ("temperature", float, "draw tokens at random; 1 is the model's own distribution"),
        ("top-k", int, "from so many tokens, the likeliest"),
        ("top-p", float, "from the likeliest tokens that together reach this probability"),
        ("min-p", float, "from tokens at least so likely, as a share of the likeliest one's"),
        ("repetition-penalty", float, "divide what favours tokens that are there; 1 is none"),
        ("presence-penalty", float, "subtract from logits of tokens that the answer has"),
        ("frequency-penalty", float, "the same, for each time that it has the token"),
        ("seed", int, "the same seed gives the same answer"),
        ("logprobs", int, "with --json, each token's log-probability, and of so many others"),
    ):
        group.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )


def _add_run(commands: Any) -> None:
    parser = _command(commands, "run", "run a package on prompts or texts")
    _add_package(parser)
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="may be given several times"
    )
    parser.add_argument("--prompts-file", type=Path, metavar="FILE", help="one prompt a line")
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
        "--chat", action="store_true", help="put each prompt into the chat template"
    )
    _add_sampling(parser)
    _add_threads(parser)


def _add_serve(commands: Any) -> None:
    parser = _command(commands, "serve", "serve a package by OpenAI's API")
    _add_package(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at (default: 127.0.0.1, this machine alone)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="0 for any (default: 8000)"
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="that clients must send (default: QEFF_ZOO_API_KEY of the environment)",
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="of the model, for clients (default: the package's)"
    )
    _add_threads(parser)
    parser.add_argument(
        "--max-queue",
        type=int,
        default=1024,
        metavar="N",
        help="requests that may wait (default: 1024)",
    )
    parser.add_argument(
        "--prefix-cache-bytes",
        type=int,
        metavar="N",
        help="memory for prompts that begin alike (default: 128 MiB)",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds that running requests have to finish when the server ends (default: 20)",
    )


def _add_bench(commands: Any) -> None:
    parser = _command(commands, "bench", "measure how fast a package generates")
    _add_package(parser)
    many: dict[str, Any] = {"type": int, "nargs": "+", "default": [], "metavar": "N"}
    parser.add_argument("--prompt-len", **many, help="tokens of a prompt (default: 128)")
    parser.add_argument(
        "--generation-len", type=int, metavar="N", help="tokens to generate (default: 64)"
    )
    parser.add_argument(
        "--batch-size", **many, help="requests at a time (default: 1, and all rows of the package)"
    )
    _add_threads(parser)
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="runs that count (default: 3)"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="also draw speed by context and by batch; sizes left out cover both by doubling",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_validate(commands: Any) -> None:
    parser = _command(
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
        "--record", action="store_true", help="write validated_models/ORG/NAME.json"
    )
    group = parser.add_argument_group("perplexity", "of a package, in place of the checks")
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
        "--stride", type=int, metavar="N", help="from window to window (default: half of one)"
    )
    group.add_argument(
        "--batch-size",
        type=int,
        default=1,
        metavar="N",
        help="windows at a time of Hugging Face's model (default: 1); a package runs as many as it has rows",
    )
    group.add_argument("--graph", action="store_true", help="also the portable graph, in float32")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_inspect(commands: Any) -> None:
    parser = _command(commands, "inspect", "explain a package")
    _add_package(parser)
    parser.add_argument(
        "--verify", action="store_true", help="read every byte and compare it with its digest"
    )


def _add_resolve(commands: Any) -> None:
    parser = _command(
        commands, "resolve", "say whether a shared package will do, which one, and why no other"
    )
    _add_choices(parser)
    parser.add_argument(
        "--key", help="only the package of this build key (16 digits or more) or path"
    )
    _add_offline(parser)


def _add_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offline",
        action="store_true",
        help="use no network: the indexes seen last, and the store",
    )


def _add_pull(commands: Any) -> None:
    parser = _command(commands, "pull", "bring a shared package here, every byte checked")
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="Hub id (org/name), Hub repository of packages (org/repo[@revision]) or URL of a remote",
    )
    _add_axes(parser)
    parser.add_argument(
        "--key", help="only the package of this build key (16 digits or more) or path"
    )
    parser.add_argument(
        "--locked",
        nargs="?",
        type=Path,
        const=Path("qeff-zoo.lock"),
        metavar="FILE",
        help="exactly what this file pins, of the models named or of all (default: qeff-zoo.lock)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--or-build", action="store_true", help="build it where there is none to pull"
    )
    _add_offline(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_lock(commands: Any) -> None:
    parser = _command(commands, "lock", "choose a package for each model, and pin it in a file")
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="as for `pull`; the choices hold for all"
    )
    _add_axes(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("qeff-zoo.lock"),
        help="written anew (default: qeff-zoo.lock)",
    )
    _add_offline(parser)


def _add_repair(commands: Any) -> None:
    parser = _command(commands, "repair", "make damaged packages of the store whole again")
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help="folder, build key or model name (default: every package of the store)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_bundle(commands: Any) -> None:
    text = "move packages to a machine without a network, in one file"
    parser = commands.add_parser("bundle", help=text, description=text)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    export = _command(verbs, "export", "write packages to one file", "bundle")
    export.add_argument(
        "packages",
        nargs="+",
        metavar="PACKAGE|MODEL",
        help="folder, build key or model name of a package, or a model to pull",
    )
    export.add_argument(
        "-o", "--output", type=Path, metavar="FILE.tar", required=True, help="written anew"
    )
    imported = _command(
        verbs, "import", "bring the packages of such a file into the store", "bundle"
    )
    imported.add_argument("file", type=Path, metavar="FILE.tar")
    for parser in (export, imported):
        parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_yank(commands: Any) -> None:
    parser = _command(commands, "yank", "say in a remote's index what became known of a package")
    parser.add_argument(
        "remote",
        metavar="REMOTE",
        help="Hub repository (org/repo), hf://org/repo[@branch] or file:///path",
    )
    parser.add_argument(
        "package", metavar="KEY|PATH", help="16 hex digits of its build key or more, or its path"
    )
    parser.add_argument("--reason", metavar="TEXT", help="for people, one line")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--superseded-by", metavar="KEY|PATH", help="warn, and prefer this package of the remote"
    )
    kind.add_argument(
        "--known-bad",
        action="store_true",
        help="refuse it to everybody, whoever asks for its key too",
    )
    kind.add_argument("--undo", action="store_true", help="take back what was said")


def _add_publish(commands: Any) -> None:
    parser = _command(commands, "publish", "put a package where others find it, in one commit")
    _add_package(parser)
    parser.add_argument(
        "remote",
        metavar="REMOTE",
        help="Hub repository (org/repo), hf://org/repo[@branch] or file:///path",
    )
    _add_private(parser)
    parser.add_argument(
        "--create-pr", action="store_true", help="open a pull request in place of committing"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_private(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--private", action="store_true", help="make a new Hub repository a private one"
    )


def _add_sign(commands: Any) -> None:
    parser = _command(commands, "sign", "vouch for a package with a signature over its manifest")
    _add_package(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="PEM file of an elliptic curve's private key (its password: QEFF_ZOO_KEY_PASSWORD)",
    )
    how.add_argument(
        "--keyless",
        action="store_true",
        help="as the workflow or the person that runs this, by Sigstore",
    )


def _add_serve_args(commands: Any) -> None:
    parser = _command(
        commands, "serve-args", "print what vllm-qaic needs to serve a package of target qaic"
    )
    _add_package(parser)


def _add_cache(commands: Any) -> None:
    parser = commands.add_parser(
        "cache", help="list, clean or check the store", description="The store of packages."
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _command(verbs, "ls", "list what the store holds", "cache")
    gc = _command(
        verbs, "gc", "remove failed and abandoned builds, and what was long unused", "cache"
    )
    gc.add_argument(
        "--older-than",
        type=float,
        metavar="DAYS",
        help="also packages and graphs unused for so long",
    )
    gc.add_argument("--dry-run", action="store_true", help="only say what would go")
    _command(
        verbs,
        "verify",
        "read every byte of the store and compare it with its digest",
        "cache",
    )


def _add_doctor(commands: Any) -> None:
    _command(commands, "doctor", "say what this machine can do, and what is missing")


def _add_new(commands: Any) -> None:
    parser = _command(commands, "new", "write the skeleton of a recipe from its nearest relative")
    parser.add_argument("model", metavar="MODEL", help="Hub id, folder or config.json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", default=Path("recipes"), help="default: recipes"
    )
