# SPDX-License-Identifier: Apache-2.0
"""`qeff-cloud-execute`: a package and prompts in, answers out."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qeff_zoo.cli.inputs import saying_warnings
from qeff_zoo.disk.regular import is_here
from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.qpc_folders import sizes_of
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
    return flags.run(lambda arguments, _: _execute(arguments), _parser(), argv, given)


def _execute(arguments: argparse.Namespace) -> None:
    flags.configure_hub(arguments)

    from qeff_zoo.qefficient.execution import prompts_of

    prompts = prompts_of(arguments.prompt, arguments.prompts_txt_file_path)
    answer(_package(arguments), prompts, arguments, flags.image_of(arguments))


def _package(arguments: argparse.Namespace) -> str:
    """Return where the package is: of a path as QEfficient's commands make them, what `infer` built for these sizes."""
    path = str(arguments.qpc_path)
    sizes = sizes_of(path)
    if sizes is None or arguments.model_name is None or is_here(path):
        return path
    from qeff_zoo.qefficient.functions import find_built

    package = find_built(flags.configure_hub(arguments), **sizes)
    if package is None:
        return path  # which says that nothing is there
    print(f"There is no {path!r}: running {package.path}, which has these sizes.", file=sys.stderr)
    return str(package.path)


def answer(
    path: str, prompts: Sequence[str], arguments: argparse.Namespace, image: Any = None
) -> None:
    """Answer prompts with a package, and print them.

    Args:
        path: Path of the package.
        prompts: Any number.
        arguments: Arguments of a command: `device_group`, `full_batch_size`, `generation_len` and `json`.
        image: Image of every prompt, for a vision-language package.

    Raises:
        GenerationError: The package has another number of slots, or a prompt cannot be answered.
    """
    from qeff_zoo import targets
    from qeff_zoo.qefficient import cloud_ai_100_exec_kv
    from qeff_zoo.qefficient.functions import package_at

    package = package_at(path)
    slots = {
        entry["symbols"].get("full_batch_size") for entry in package.programs[0].specializations
    }
    if arguments.full_batch_size is not None and slots != {str(arguments.full_batch_size)}:
        raise GenerationError(
            f"--full_batch_size is {arguments.full_batch_size}, and package {str(package.path)!r} has "
            f"{', '.join(filter(None, slots)) or 'none'}; expected the same. Leave it out, or build with it."
        )
    with saying_warnings():
        info = cloud_ai_100_exec_kv(
            None,
            package.path,
            prompts,
            device_id=arguments.device_group if package.target in targets.on_cards() else None,
            generation_len=arguments.generation_len,
            stream=not arguments.json,
            image=image,
        )
    if arguments.json:
        print_json({"package": str(package.path), **asdict(info)})
    else:
        print(info, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = flags.command("execute", "Run a package on prompts.")
    flags.add_model(parser, required=False)
    text = "folder of a package, or one with `qpcs` in it; or a key or name of the store"
    flags.add(parser, "qpc_path", required=True, metavar="DIR", help=text)
    flags.add_devices(parser)
    flags.add_prompts(parser)
    flags.add_image(parser)
    flags.add(parser, "full_batch_size", type=int, metavar="N", help="slots that it must have")
    return parser


flags.sign(main, _parser())

if __name__ == "__main__":
    sys.exit(main())
