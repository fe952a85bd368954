# SPDX-License-Identifier: Apache-2.0
"""What commands have in common: the choices of a build, a package, threads, a network or none."""

import argparse
from typing import Any


def command(commands: Any, name: str, text: str, group: str = "") -> argparse.ArgumentParser:
    """Add a command with what every one has."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=f"{group} {name}".strip())
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add a model and the choices of a build."""
    parser.add_argument(
        "model", metavar="MODEL", help="Hub id (org/name) or folder of a checkpoint"
    )
    add_axes(parser)


def add_axes(parser: argparse.ArgumentParser) -> None:
    """Add the choices of a build."""
    parser.add_argument("--revision", help="branch, tag or commit of a Hub model")
    group = parser.add_argument_group("choices", "left out, the recipe makes them")
    group.add_argument("--target", help="what to compile for (default: ort)")
    group.add_argument("--task", help="Hub pipeline tag (default: what the checkpoint is for)")
    group.add_argument("--weights", help="fp32, int8 or int4 (default: fp32)")
    group.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="columns that share a scale of int8 and int4: 32, 64 or 128 (default: 64; larger is faster, less exact)",
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
            type=integers,
            metavar="N,N",
            help=f"rows of the cache that a {kind} call looks at: the least that holds its tokens (default: all)",
        )
    group.add_argument(
        "--seq-lens", type=integers, metavar="N,N", help="sequence lengths of an encoder"
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
    group.add_argument(
        "--rope-factors",
        help="of longrope, short or long for all texts (default: long where the context exceeds the original one)",
    )


def integers(text: str) -> tuple[int, ...]:
    """Read numbers that commas part."""
    return tuple(int(part) for part in text.split(","))


def add_package(parser: argparse.ArgumentParser) -> None:
    """Add the package that a command is about."""
    parser.add_argument(
        "package", metavar="PACKAGE", help="folder, build key or model name of a package"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: physical cores)"
    )


def add_offline(parser: argparse.ArgumentParser) -> None:
    """Add that no network is used."""
    parser.add_argument(
        "--offline",
        action="store_true",
        help="use no network: the indexes seen last, and the store",
    )


def add_private(parser: argparse.ArgumentParser) -> None:
    """Add that a new repository is a private one."""
    parser.add_argument(
        "--private", action="store_true", help="make a new Hub repository a private one"
    )
