# SPDX-License-Identifier: Apache-2.0
"""What this machine has of the SDKs of Cloud AI 100, and QEfficient's files for them."""

import re
import warnings
from pathlib import Path
from typing import Any

from qeff_zoo import targets
from qeff_zoo.disk.yaml_files import read_yaml
from qeff_zoo.errors import CompileError, PlanError, ZooError
from qeff_zoo.package.manifest import parse
from qeff_zoo.package.option import JsonText
from qeff_zoo.targets.base import Target


def json_text(config: Any) -> JsonText:
    """Read QEfficient's file of arguments of QNN's tools."""
    from qeff_zoo.package.identity import canonical

    try:
        return JsonText(canonical(parse(Path(config).read_bytes())).decode())
    except (OSError, ValueError, TypeError) as error:
        raise PlanError(
            [
                f"Cannot read qnn_config {config!r}: {error}. Expected a file that holds a JSON object."
            ]
        ) from error


#: Operators of floats that a lowered graph has, and their names in QEfficient's graphs.
_OPERATORS = ("Add", "CustomRMSNorm", "Mul", "Softmax", "Sub")


def operators_of(file: str) -> tuple[str, ...] | None:
    """Read QEfficient's file of nodes in float32: their operators, which are computed in float32 everywhere.

    Args:
        file: Path of a YAML file with `FP32NodeInstanceNames`; nodes in float16 need no option.

    Returns:
        Value of `node_precision_info`; None without nodes in float32.
    """
    try:
        content = read_yaml(Path(file))
        names = [str(name) for name in content.get("FP32NodeInstanceNames") or ()]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise PlanError(
            [
                f"Cannot read node_precision_info {file!r}: {error}. Expected QEfficient's YAML file with "
                "FP32NodeInstanceNames, or operators and names of nodes."
            ]
        ) from error
    kinds = {re.sub(r"(_\d+)?(_output_\d+)?$", "", name.rpartition("/")[2]) for name in names}
    if others := sorted(kinds - {*_OPERATORS}):
        warnings.warn(
            f"{file!r}: {', '.join(others[:5])}{' …' if len(others) > 5 else ''} stay in float16: they are nodes of "
            f"QEfficient's graph that this one lacks. Operators {' and '.join(sorted(kinds & {*_OPERATORS}))} are "
            "computed in float32.",
            stacklevel=2,
        )
    return tuple(sorted(kinds & {*_OPERATORS})) or None


def compiles(target: Target) -> bool:
    """Whether a target's compiler is here."""
    try:
        target.require_compiler()
    except CompileError:
        return False
    return True


def has(card: str) -> bool:
    """Whether this machine has a target's compiler and the runtime of its cards."""
    from qeff_zoo.targets.qaic import cards

    try:
        targets.find(card).require_compiler()
        cards.sdk()
    except ZooError:
        return False
    return True
