# SPDX-License-Identifier: Apache-2.0
"""Options of generation that `run`, `chat` and `serve` share, and the arguments of sessions that they become."""

import argparse
from pathlib import Path
from typing import Any

from qeff_zoo.cli.inputs import drafting
from qeff_zoo.cli.options import json_object
from qeff_zoo.errors import AdapterError


def add_generation_config(parser: Any) -> None:
    """Add the option that selects the sampling defaults."""
    parser.add_argument(
        "--generation-config",
        choices=("auto", "none"),
        default="auto",
        help="generation settings: those of the checkpoint's generation_config.json, or none of them (default: auto)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling parameters and stop strings."""
    group = parser.add_argument_group(
        "sampling",
        "default: the checkpoint's generation_config.json if it samples (do_sample), otherwise greedy decoding",
    )
    add_generation_config(group)
    for name, kind, text in (
        ("temperature", float, "sampling temperature; 1 is the model's own distribution"),
        ("top-k", int, "sample from the N most likely tokens"),
        ("top-p", float, "sample from the most likely tokens with this total probability"),
        ("min-p", float, "sample from tokens at least X times as likely as the most likely one"),
        ("typical-p", float, "sample from the most typical tokens with this total probability"),
        (
            "repetition-penalty",
            float,
            "penalty factor for tokens of the prompt and the output; 1 is none",
        ),
        (
            "presence-penalty",
            float,
            "subtracted from the logits of tokens in the output",
        ),
        (
            "frequency-penalty",
            float,
            "subtracted from the logits for each occurrence in the output",
        ),
        ("seed", int, "random seed; equal seeds give equal outputs"),
        (
            "logprobs",
            int,
            "log-probabilities of each token and of the N most likely ones, with --json",
        ),
    ):
        group.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop string, not part of the output; repeatable",
    )


def add_acceptance(parser: argparse.ArgumentParser) -> None:
    """Add the acceptance rule of draft tokens."""
    parser.add_argument(
        "--acceptance",
        choices=["exact", "rejection"],
        default="exact",
        help="acceptance rule for tokens of a draft model, with sampling: exact (the request samples the same token; "
        "a seed gives the same output as without drafts; default) or rejection (rejection sampling by min(1, p/q), "
        "which accepts more)",
    )


def add_prefix_cache(parser: argparse.ArgumentParser, *, chat: bool = False) -> None:
    """Add the options of the prefix cache.

    Args:
        parser: Parser of a command.
        chat: Whether the command is a chat, which caches generated tokens where the device allows it.
    """
    parser.add_argument(
        "--prefix-cache-bytes",
        type=int,
        metavar="N",
        help="memory of the prefix cache in bytes; 0 for none (default: 128 MiB)",
    )
    if chat:
        parser.set_defaults(prefix_cache_answers="possible")
    else:
        parser.add_argument(
            "--prefix-cache-answers",
            action=argparse.BooleanOptionalAction,
            help="cache generated tokens too, for the next turn of a chat; the last bits of logits then depend on "
            "cache hits (default: if the package computes in float32)",
        )
    parser.add_argument(
        "--prefix-cache-dir",
        type=Path,
        metavar="DIR",
        help="folder for the prefix cache, for later runs; it reveals the prompts to its readers",
    )


def generation_choices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a text generation session: its source of draft tokens, and its prefix cache."""
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


def load_adapter(session: Any, given: str, flag: str) -> str:
    """Load the adapter of a flag, `NAME=DIR`; return its name.

    Raises:
        AdapterError: The value has another form, or the adapter cannot be loaded.
    """
    name, equals, source = given.partition("=")
    if not (name and equals and source):
        raise AdapterError(
            f"{flag} is {given!r}; expected NAME=DIR, such as sql=adapters/sql. Give the adapter a name."
        )
    session.adapters.load(name, source)
    return name


def add_template(parser: argparse.ArgumentParser) -> None:
    """Add the options of the chat template."""
    parser.add_argument(
        "--chat-template",
        metavar="NAME",
        help="name of the chat template, if the package has several (default: its default one)",
    )
    parser.add_argument(
        "--chat-template-kwargs",
        type=json_object,
        metavar="JSON",
        help="variables of the chat template, such as '{\"enable_thinking\": false}'",
    )
    parser.add_argument(
        "--reasoning-effort",
        metavar="EFFORT",
        help="variable reasoning_effort of the chat template, such as low; none also turns off enable_thinking",
    )


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """Add the option of a LoRA adapter."""
    parser.add_argument(
        "--adapter",
        metavar="NAME=DIR",
        help="LoRA adapter of peft, a folder or Hub id, for packages built with --max-loras",
    )
