# SPDX-License-Identifier: Apache-2.0
"""Flags that QEfficient's commands share, each in both spellings, and options of the compiler alone."""

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from qeff_zoo.cli import guarded
from qeff_zoo.errors import PlanError


def command(name: str, text: str) -> argparse.ArgumentParser:
    """Return the parser of a command.

    Args:
        name: After `qeff-cloud-`.
        text: Description of the command.
    """
    parser = argparse.ArgumentParser(
        prog=f"qeff-cloud-{name}", description=text, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def add(parser: argparse._ActionsContainer, *names: str, **facts: Any) -> None:
    """Add a flag in both spellings.

    Args:
        parser: Parser of the command, or a group of its flags.
        *names: QEfficient's spellings, with `_`; the first names the attribute.
        **facts: Arguments of `add_argument`.
    """
    short = [name for name in names if len(name) == 1]
    long = [name for name in names if len(name) > 1]
    flags = [f"--{one}" for name in long for one in dict.fromkeys((name, name.replace("_", "-")))]
    parser.add_argument(*flags, *(f"-{name}" for name in short), dest=names[0], **facts)


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the flags that locate a model."""
    add(parser, "model_name", required=required, help="Hub id or folder of a checkpoint")
    add(parser, "local_model_dir", metavar="DIR", help="folder of the same model, read instead")
    add(parser, "cache_dir", metavar="DIR", help="where downloads of the Hub are kept")
    add(parser, "hf_token", metavar="TOKEN", help="of the Hub, for models that are not public")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of a package."""
    for name, default, text in (
        ("batch_size", 1, "prompts answered at a time"),
        ("prompt_len", 32, "prompt tokens taken by one call"),
        ("ctx_len", 128, "prompt and generated tokens together"),
    ):
        facts: dict[str, Any] = {"type": int, "default": default, "metavar": "N"}
        add(parser, name, **facts, help=f"{text} (default: {default})")
    add(parser, "full_batch_size", type=int, metavar="N", help="slots of continuous batching")


def add_compiler(parser: argparse.ArgumentParser, *, mos: int, device_group: bool) -> None:
    """Add what is for a compiler.

    Args:
        parser: Parser of the command.
        mos: Default of --mos.
        device_group: Whether --device_group has to be given.
    """
    on = {"action": "store_true"}
    add(parser, "mxfp6", "mxfp6_matmul", **on, help="matrices in MXFP6, on a card")
    add(parser, "mxint8", "mxint8_kv_cache", **on, help="keys and values in MXINT8, on a card")
    add(parser, "num_cores", type=int, required=True, metavar="N", help="cores of each card")
    add_devices(parser, required=device_group)
    add(parser, "aic_enable_depth_first", **on, help="compute depth first, on a card")
    text = f"degree to which weights are split over the cores; -1 leaves it to the compiler (default: {mos})"
    add(parser, "mos", type=int, default=mos, metavar="N", help=text)
    add(parser, "allow_mxint8_mdp_io", **on, help="pass MXINT8 between cards")
    text = "compile by the QNN SDK, with more arguments from this file"
    add(parser, "enable_qnn", nargs="?", const=True, default=False, metavar="CONFIG", help=text)
    text = "what to compile for (default: a card where its SDK is, else ort, the CPU)"
    add(parser, "target", metavar="NAME", help=text)


def add_devices(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the cards to run on."""
    text = "ids of cards, such as [0,1]; a model is sliced over several"
    add(parser, "device_group", type=integers, required=required, metavar="[N,N]", help=text)


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add what is to be answered."""
    add(parser, "prompt", metavar="TEXT", help="prompts, with | between them")
    add(parser, "prompts_txt_file_path", metavar="FILE", help="a file with one prompt a line")
    text = "tokens to generate (default: as many as the context holds)"
    add(parser, "generation_len", type=int, metavar="N", help=text)


def add_image(parser: argparse.ArgumentParser) -> None:
    """Add the flags of an image for all prompts."""
    one = parser.add_mutually_exclusive_group()
    text = "image of every prompt, for a vision-language model"
    add(one, "image_path", metavar="FILE", help=text)
    add(one, "image_url", metavar="URL", help=f"{text}: fetched from there")


def image_of(arguments: argparse.Namespace) -> Any:
    """Return the pixels of the image of `add_image`, (height, width, 3); None without one.

    Raises:
        MediaError: The image cannot be fetched or read.
    """
    if arguments.image_path is None and arguments.image_url is None:
        return None
    from qeff_zoo.media.fetching import fetch_media
    from qeff_zoo.media.images import read_image

    path, url = arguments.image_path, arguments.image_url
    return read_image(path if url is None else fetch_media(url))


def run(
    command: Callable[[argparse.Namespace, dict[str, Any]], None],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | str | None,
    given: Mapping[str, Any],
    *,
    unknown_options: bool = False,
) -> int:
    """Run a command line, or QEfficient's Python function of the same name and arguments.

    Args:
        command: Function of the command, for parsed flags and unknown options.
        parser: Parser of the command.
        argv: Command line; None for that of the process; or the model's name, for a function.
        given: Arguments of a function, by the names of the flags; empty for a command line.
        unknown_options: Whether unknown options are for the compiler.

    Returns:
        Exit code of a command line; 0 after a function.

    Raises:
        ZooError: A function fails; a command line prints the error.
    """
    is_function = bool(given) or isinstance(argv, str)
    words = _words(argv, given) if is_function else sys.argv[1:] if argv is None else [*argv]
    if is_function:
        parser.error = _refuse  # type: ignore[method-assign]
    arguments, rest = parser.parse_known_args(words)
    if rest and not unknown_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options = unknown(parser, rest)
    if is_function:
        command(arguments, options)
        return 0
    return guarded(lambda: command(arguments, options), words)


def sign(function: Callable[..., int], parser: argparse.ArgumentParser) -> None:
    """Give a function of QEfficient the signature that `inspect` shows: a parameter for each flag.

    Args:
        function: Function of a command.
        parser: Parser of the command.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = {action.dest: action.default for action in parser._actions if action.dest != "help"}
    first = [name for name in ("model_name",) if name in names]
    parameters = [
        inspect.Parameter(
            name, kind if name in first else inspect.Parameter.KEYWORD_ONLY, default=names[name]
        )
        for name in dict.fromkeys([*first, *names])
    ]
    vars(function)["__signature__"] = inspect.Signature(parameters, return_annotation=int)


def _words(argv: Sequence[str] | str | None, given: Mapping[str, Any]) -> list[str]:
    """Return the command line of a function's arguments; None and False are not given."""
    words = ["--model_name", argv] if isinstance(argv, str) else [*(argv or ())]
    named = {**given}
    config = named.pop("qnn_config", None)
    if config is not None and named.get("enable_qnn"):
        named["enable_qnn"] = config
    for name, value in named.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list | tuple):
            texts = all(isinstance(item, str) for item in value)
            words.append("|".join(value) if texts else ",".join(map(str, value)))
        elif value is not True:
            words.append(str(value))
    return words


def _refuse(message: str) -> NoReturn:
    raise PlanError(
        [
            f"The arguments are refused: {message}. Expected those of the command of the same name; see its --help."
        ]
    )


def integers(text: str) -> list[int]:
    """Read numbers separated by commas, perhaps in brackets."""
    return [int(part) for part in text.strip().strip("[]").split(",") if part.strip()]


def compiler_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_compiler` read, as `compile` takes it."""
    qnn = arguments.enable_qnn
    return {
        "mxfp6_matmul": arguments.mxfp6,
        "mxint8_kv_cache": arguments.mxint8,
        "num_cores": arguments.num_cores,
        "device_group": arguments.device_group,
        "aic_enable_depth_first": arguments.aic_enable_depth_first,
        "mos": None if arguments.mos == -1 else arguments.mos,
        "allow_mxint8_mdp_io": arguments.allow_mxint8_mdp_io,
        "enable_qnn": bool(qnn),
        "qnn_config": None if isinstance(qnn, bool) else qnn,
        "target": arguments.target,
    }


def unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Read options that a command does not have: `--name value` or `--name`.

    Args:
        parser: Parser of the command, which refuses all other flags.
        words: All of them, in their order.
    """
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, sign, value = word[2:].partition("=")
            name = "" if sign else flag.replace("-", "_")
            options[flag.replace("-", "_")] = _value(value) if sign else True
        elif name:
            options[name], name = _value(word), ""
        else:
            parser.error(f"unrecognized arguments: {word}")
    return options


def _value(text: str) -> Any:
    switches = {"true": True, "false": False}
    return switches.get(text.lower(), text)


def configure_hub(arguments: argparse.Namespace) -> str:
    """Configure huggingface_hub by the flags of `add_model`, before its import; return the model."""
    variables: Mapping[str, str | None] = {
        "HF_HUB_CACHE": arguments.cache_dir,
        "HF_TOKEN": arguments.hf_token,
    }
    os.environ.update({name: value for name, value in variables.items() if value})
    return str(arguments.local_model_dir or arguments.model_name)
