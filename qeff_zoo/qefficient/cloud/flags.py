# SPDX-License-Identifier: Apache-2.0
"""Flags that QEfficient's commands share, each in both spellings, and options of the compiler alone."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any


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


def add_picture(parser: argparse.ArgumentParser) -> None:
    """Add the flags of an image for all prompts."""
    one = parser.add_mutually_exclusive_group()
    text = "picture that every prompt is about, for a model that sees"
    add(one, "image_path", metavar="FILE", help=text)
    add(one, "image_url", metavar="URL", help=f"{text}: fetched from there")


def picture_of(arguments: argparse.Namespace) -> Any:
    """Return the pixels of the image of `add_picture`, (height, width, 3); None without one.

    Raises:
        MediaError: The image cannot be fetched or read.
    """
    if arguments.image_path is None and arguments.image_url is None:
        return None
    from qeff_zoo.media.fetching import fetch_media
    from qeff_zoo.media.images import read_image

    path, url = arguments.image_path, arguments.image_url
    return read_image(path if url is None else fetch_media(url))


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
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, sign, value = word[2:].partition("=")
            name = "" if sign else flag.replace("-", "_")
            found[flag.replace("-", "_")] = _value(value) if sign else True
        elif name:
            found[name], name = _value(word), ""
        else:
            parser.error(f"unrecognized arguments: {word}")
    return found


def _value(text: str) -> Any:
    switches = {"true": True, "false": False}
    return switches.get(text.lower(), text)


def say_where(arguments: argparse.Namespace) -> str:
    """Configure huggingface_hub by the flags of `add_model`, before its import; return the model."""
    told: Mapping[str, str | None] = {
        "HF_HUB_CACHE": arguments.cache_dir,
        "HF_TOKEN": arguments.hf_token,
    }
    os.environ.update({name: value for name, value in told.items() if value})
    return str(arguments.local_model_dir or arguments.model_name)
