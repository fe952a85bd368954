# SPDX-License-Identifier: Apache-2.0
"""`qeff-cloud-export`: a model in, the path of its portable ONNX graph out."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from qeff_zoo.cli.inputs import saying_warnings
from qeff_zoo.qefficient import counterparts
from qeff_zoo.terminal.printing import print_json

from . import flags

__getattr__ = counterparts.names_of(__name__)


def main(argv: Sequence[str] | str | None = None, **given: Any) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Command line; None for that of the process. In QEfficient's Python function, the model's name.
        **given: Arguments of QEfficient's Python function, which have the names of the flags.

    Raises:
        ZooError: The function fails.
    """
    return flags.run(lambda arguments, _: _export(arguments), _parser(), argv, given)


def get_onnx_path_and_setup_customIO(  # noqa: N802 -- QEfficient's name
    model_name: str,
    cache_dir: str | None = None,
    hf_token: str | None = None,
    full_batch_size: int | None = None,
    local_model_dir: str | None = None,
    mxint8_kv_cache: bool = False,
) -> str:
    """Return the path of a model's portable ONNX graph, which is written unless it is there.

    Args:
        model_name: Hub id or folder.
        cache_dir: Cache of downloads.
        hf_token: Token of the Hub.
        full_batch_size: Any number for a graph of continuous batching.
        local_model_dir: Folder of the same model, read in its place.
        mxint8_kv_cache: Accepted: the graph is the same, and `compile` chooses the type of KV states.
    """
    from qeff_zoo.qefficient import QEFFAutoModelForCausalLM

    location: dict[str, Any] = {"cache_dir": cache_dir, "token": hf_token}
    model = QEFFAutoModelForCausalLM.from_pretrained(
        local_model_dir or model_name, continuous_batching=bool(full_batch_size), **location
    )
    return model.export()


def _export(arguments: argparse.Namespace) -> None:
    model_name = flags.configure_hub(arguments)

    from qeff_zoo import qefficient

    with saying_warnings():
        _, path = qefficient.export(model_name, full_batch_size=arguments.full_batch_size)
    if arguments.json:
        print_json({"path": path})
    else:
        print(path)


def _parser() -> argparse.ArgumentParser:
    parser = flags.command(
        "export", "Write the portable ONNX graph of a model, unless it is there."
    )
    flags.add_model(parser)
    flags.add(
        parser, "full_batch_size", type=int, metavar="N", help="for a graph of continuous batching"
    )
    text = "accepted: the graph is the same, and `compile` chooses the type of keys and values"
    flags.add(parser, "mxint8_kv_cache", nargs="?", const=True, default=False, help=text)
    return parser


flags.sign(main, _parser())

if __name__ == "__main__":
    sys.exit(main())
