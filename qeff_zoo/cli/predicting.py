# SPDX-License-Identifier: Apache-2.0
"""The `predict` command: effect of a device's numerics on a model, without the device."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inputs import source_of
from qeff_zoo.cli.options import add_gguf, command
from qeff_zoo.disk.text_files import read_text
from qeff_zoo.errors import GenerationError
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.terminal.printing import print_json, table

if TYPE_CHECKING:
    from qeff_zoo.prediction.measures import Figures
    from qeff_zoo.prediction.search import Search

#: Options of a build that apply to a prediction: those that change the computation or its calls.
PREDICTED = ("task", "ctx_len", "prefill_seq_len")

_ASSUMED = (
    "Assumed: float16 after every operator, saturating at 65504; sums in float32; norms as one operator; angles from "
    "tables; mxfp6 (E2M3, blocks of 32 along the summed axis) for constant matrices of products; mxint8 (blocks of 32 "
    "along the head) for keys and values before they are read; of HTP, its simulator's softmax and sigmoid. Not "
    "measured on a device: see docs/prediction.md."
)


def predict_command(arguments: argparse.Namespace) -> None:
    """Print the effect of devices' numerics on a model."""
    from qeff_zoo.contract import find
    from qeff_zoo.disk.plot_files import require_drawable
    from qeff_zoo.plan.request import Request
    from qeff_zoo.prediction import plots
    from qeff_zoo.prediction.measures import thresholds
    from qeff_zoo.prediction.predict import predict

    text = None if arguments.text is None else read_text(arguments.text)
    if arguments.tokens < 2:
        raise GenerationError(
            f"Cannot predict {arguments.tokens} tokens; expected at least 2, of which the first predicts the second. "
            "Change --tokens."
        )
    if arguments.plot is not None:
        require_drawable(arguments.plot)
    prediction = predict(
        arguments.model,
        text=text,
        tokens=arguments.tokens,
        keep=tuple(arguments.keep_precision),
        search=arguments.search,
        request=Request(**{name: getattr(arguments, name) for name in PREDICTED}),
        **source_of(arguments),
        reporter=reporter(arguments),
    )
    meaning = thresholds(find(prediction.task).comparison)
    if arguments.plot is not None:
        plots.draw(prediction.rows, arguments.plot, prediction.name)
    if arguments.json:
        print_json({**prediction.as_dict(), "thresholds": meaning, "assumed": _ASSUMED})
        return
    print(f"{prediction.name}: {prediction.tokens:,} tokens, against Hugging Face in float32\n")
    print(_table(prediction.rows))
    print(f"\n{meaning[0].upper()}{meaning[1:]}\n{_ASSUMED}")
    if prediction.spared is not None:
        print(f"\n{_spared(prediction.spared)}")


def _table(rows: "Sequence[Figures]") -> str:
    if rows[0].top1 is None:
        headers = ["numerics", "mean cosine distance", "max", "max rel. error", "verdict"]
        cells = [
            [row.numerics, f"{row.mean_distance:.2g}", f"{row.max_distance:.2g}",
             f"{row.max_relative_error:.2g}", row.verdict]
            for row in rows
        ]  # fmt: skip
        return table(cells, headers)
    headers = ["numerics", "mean KL", "max KL", "top-1", "max rel. error", "perplexity", "ratio"]
    cells = [
        [row.numerics, f"{row.mean_distance:.2g}", f"{row.max_distance:.2g}", f"{row.top1:.1%}",
         f"{row.max_relative_error:.2g}", f"{row.perplexity:.4f}", f"{row.ratio:.4f}", row.verdict]
        for row in rows
    ]  # fmt: skip
    return table(cells, [*headers, "verdict"])


def _spared(search: "Search") -> str:
    rows = [
        [pattern, f"{cost:.2g}", "yes" if pattern in search.keep else ""]
        for pattern, cost in search.costs.items()
    ]
    parts = [table(rows, ["in mxfp6 alone", "costs", "to spare"])]
    if not search.keep:
        parts.append("The model does well as it is: nothing has to be spared.")
    elif search.figures.verdict == "good":
        parts.append("With these spared the model does well:")
    else:
        parts.append(
            "It does not do well even with all of them spared: mxfp6 is not what is wrong."
        )
    if search.keep:
        parts.append(" ".join(f"--keep-precision '{pattern}'" for pattern in search.keep))
        parts.append(_table([search.without, search.figures]))
    return "\n\n".join(parts)


# --- arguments ----------------------------------------------------------------------------------


def _add_predict(commands: Any) -> None:
    parser = command(
        commands,
        "predict",
        "emulate a device's numerics on the CPU, and report their effect on a model",
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
        help="text to predict, or one text per line for an encoder (default: built-in texts)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=512,
        metavar="N",
        help="largest number of tokens of the text (default: 512)",
    )
    parser.add_argument(
        "--keep-precision",
        action="append",
        default=[],
        metavar="PATTERN",
        help="weights kept in float32 on the device, with the operators that use them: 'model.layers.3.*'; repeatable",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="also search for layers to exclude from MXFP6, with about one run per layer",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="also plot the distances from float32"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = ((_add_predict, {"predict": predict_command}),)
