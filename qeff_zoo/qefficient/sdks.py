# SPDX-License-Identifier: Apache-2.0
"""What this machine has of the SDKs of Cloud AI 100, and QEfficient's file for one of them."""

from pathlib import Path
from typing import Any

from qeff_zoo import targets
from qeff_zoo.errors import CompileError, PlanError, ZooError
from qeff_zoo.package.manifest import parse
from qeff_zoo.plan.option import JsonText
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
