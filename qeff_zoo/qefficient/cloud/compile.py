# SPDX-License-Identifier: Apache-2.0
"""`qeff-cloud-compile`: an exported graph in, the folder of its model's package out; of QEfficient's, of its QPC."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from qeff_zoo.cli.inputs import saying_warnings
from qeff_zoo.terminal.printing import print_json

from . import flags


def main(argv: Sequence[str] | str | None = None, **given: Any) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Command line; None for that of the process. In QEfficient's Python function, the model's name.
        **given: Arguments of QEfficient's Python function, which have the names of the flags.

    Raises:
        ZooError: The function fails.
    """
    return flags.run(_compile, _parser(), argv, given, unknown_options=True)


def _compile(arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    from qeff_zoo import qefficient

    with saying_warnings():
        path = qefficient.compile(
            arguments.onnx_path,
            arguments.qpc_path,
            batch_size=arguments.batch_size,
            prompt_len=arguments.prompt_len,
            ctx_len=arguments.ctx_len,
            full_batch_size=arguments.full_batch_size,
            custom_io_file_path=arguments.custom_io_file_path,
            **flags.compiler_options(arguments),
            **options,
        )
    if arguments.json:
        print_json({"path": path})
    else:
        print(path)


def _parser() -> argparse.ArgumentParser:
    parser = flags.command("compile", "Build a package of an exported graph's model.")
    text = "by qeff-cloud-export, where that wrote it; or by QEfficient, for a card alone"
    flags.add(parser, "onnx_path", required=True, metavar="FILE", help=text)
    text = "folder in which the package or the QPC is put, as `qpcs`"
    flags.add(parser, "qpc_path", required=True, metavar="DIR", help=text)
    flags.add_sizes(parser)
    flags.add_compiler(parser, mos=-1, device_group=True)
    text = "refused: --mxint8 says what is in that file"
    flags.add(parser, "custom_io_file_path", metavar="FILE", help=text)
    return parser


flags.sign(main, _parser())

if __name__ == "__main__":
    sys.exit(main())
