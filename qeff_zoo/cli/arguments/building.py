# SPDX-License-Identifier: Apache-2.0
"""From recipes and models to packages: `list`, `show`, `quantize`, `plan`, `build`, `adopt`, `export`, `predict`."""

from pathlib import Path
from typing import Any

from qeff_zoo.cli.arguments.options import (
    add_choices,
    add_gguf,
    add_private,
    add_sign_with,
    command,
)
from qeff_zoo.plan.request import OPTIONS

#: The choices of a build that a prediction takes: those that change what is computed, or in which calls.
PREDICTED = ("task", "ctx_len", "prefill_seq_len")


def _add_list(commands: Any) -> None:
    parser = command(commands, "list", "list the architectures that have a recipe")
    parser.add_argument(
        "--models", action="store_true", help="list checkpoints instead, and what was run with each"
    )


def _add_show(commands: Any) -> None:
    parser = command(commands, "show", "show what a recipe says")
    parser.add_argument("model_type")


def _add_quantize(commands: Any) -> None:
    parser = command(
        commands, "quantize", "turn a checkpoint of floats into one of integers, fitted to a text"
    )
    parser.add_argument(
        "model", metavar="MODEL", help="Hub id (org/name) or folder of a checkpoint of floats"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hub model")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--bits", type=int, default=4, metavar="N", help="4 or 8, without a budget (default: 4)"
    )
    parser.add_argument(
        "--group-size",
        type=int,
        default=32,
        metavar="N",
        help="columns that share a scale: 16, 32, 64 or 128 (default: 32)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="BITS",
        help="bits per weight of all matrices, those that stay floats and scales included: what matters most for the "
        "answers gets 8 bits, all else 4",
    )
    parser.add_argument(
        "--zero-points",
        action="store_true",
        help="a zero point for each group of 4 bits (of 8 as well without a budget): an eighth of a bit more in groups "
        "of 32, and finer steps where values lie on one side of 0",
    )
    parser.add_argument(
        "--embeddings",
        action="store_true",
        help="also the embedding and the output matrix, which vLLM does not read as integers",
    )
    parser.add_argument(
        "--method",
        default="gptq",
        metavar="NAME",
        help="how integers are chosen: gptq, awq+gptq or nearest (default: gptq)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="a text of the kind that the model is for; of an encoder line by line (default: a few texts of ours)",
    )
    parser.add_argument(
        "--calibration-tokens",
        type=int,
        default=16384,
        metavar="N",
        help="of that text that are read at most (default: 16384)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_plan(commands: Any) -> None:
    parser = command(
        commands, "plan", "show every choice of a build, and who made it, without building"
    )
    add_choices(parser)
    add_gguf(parser)


def _add_build(commands: Any) -> None:
    parser = command(commands, "build", "turn a checkpoint into a validated package")
    add_choices(parser)
    add_gguf(parser)
    parser.add_argument(
        "--no-validate", action="store_true", help="do not compare with Hugging Face"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--prepare-only",
        action="store_true",
        help="make no package, but a folder (--output) to be compiled where the target's compiler is",
    )
    parser.add_argument(
        "--publish", metavar="REMOTE", help="also publish it to this Hub repository or remote"
    )
    add_private(parser)
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_adopt(commands: Any) -> None:
    parser = command(
        commands, "adopt", "make a package of a prepared folder and the program compiled from it"
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="by `build --prepare-only`")
    parser.add_argument(
        "program", type=Path, metavar="PROGRAM", help="folder that its compile.sh made: FOLDER/qpc"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="also take a program that does not say what it was compiled from",
    )


def _add_export(commands: Any) -> None:
    parser = command(commands, "export", "write the portable ONNX graph of a model")
    add_choices(parser)
    add_gguf(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--graph-only", action="store_true", help="no weights; a config.json is enough"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_predict(commands: Any) -> None:
    parser = command(
        commands,
        "predict",
        "say what a device's numerics would do to a model, computed on this CPU",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="Hub id (org/name) or folder of a checkpoint"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hub model")
    add_gguf(parser)
    for name in PREDICTED:
        reader: dict[str, Any] = {} if name == "task" else {"type": int, "metavar": "N"}
        parser.add_argument(OPTIONS[name].flag, help=OPTIONS[name].help, **reader)
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="what to predict, or of an encoder to read line by line (default: a few texts of ours)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=512,
        metavar="N",
        help="of the text that are read at most (default: 512)",
    )
    parser.add_argument(
        "--keep-precision",
        action="append",
        default=[],
        metavar="PATTERN",
        help="weights that stay in float32 on the device, and what reads them: 'model.layers.3.*'; may be given "
        "several times",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="also find the layers to spare from mxfp6, one run for each layer and a few more",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="also draw the distances from float32"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


#: The functions that add each command.
COMMANDS = (
    _add_list,
    _add_show,
    _add_quantize,
    _add_plan,
    _add_build,
    _add_adopt,
    _add_export,
    _add_predict,
)
