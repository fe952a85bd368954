# SPDX-License-Identifier: Apache-2.0
"""A graph that QEfficient exported -> the folder of its QPC, by the card's compiler alone.

In: the path of the graph and QEfficient's arguments. Out: `qpcs`, which QEfficient's runtime opens; or, without an SDK,
a folder with the script that compiles it.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qeff_zoo import targets
from qeff_zoo.errors import PlanError
from qeff_zoo.package.prepared import SCRIPT
from qeff_zoo.plan.request import Request

from . import translation

_TARGET = "qaic"
_DRAFTED = "num_speculative_tokens"
_SIZES = ("prefill_seq_len", "ctx_len", "batch_size", "full_batch_size", _DRAFTED)


def compile_exported(
    graph: Path, folder: Path, target: str | None, given: Mapping[str, Any]
) -> str:
    """Compile a graph of QEfficient's, unchanged.

    Args:
        graph: Path of the ONNX file, with its weights beside it.
        folder: Parent folder of `qpcs`.
        target: Requested target.
        given: Arguments of `compile`, by QEfficient's names.

    Returns:
        Folder of the QPC; `folder` without an SDK.

    Raises:
        PlanError: An option does not apply to an exported graph, or its value is invalid.
        CompileError: The compiler refuses the graph.
    """
    from qeff_zoo.plan.target import options_of
    from qeff_zoo.targets.qaic import conflicts
    from qeff_zoo.targets.qaic.foreign import compile_foreign
    from qeff_zoo.targets.qaic.options import OF_GRAPHS

    if target not in (None, _TARGET):
        raise PlanError(
            [
                f"target is {target!r}, and QEfficient exported {str(graph)!r}, whose operators only target "
                f"{_TARGET!r} has; expected that. Leave it out, or export the model by qeff-cloud-export."
            ]
        )
    fields, _ = translation.translate(given, ("target",)).request(_TARGET)
    decided = options_of(Request(**fields), targets.find(_TARGET), ())
    options, problems = decided.facts["options"], decided.problems
    sizes = {name: fields[name] for name in _SIZES if name in fields}
    drafted = sizes.pop(_DRAFTED, ())
    if len(drafted) == 1:
        sizes[_DRAFTED] = drafted[0]
    elif drafted:
        problems.append(f"`compile`: {_DRAFTED} is {drafted!r}; expected one number. Give one.")
    problems += [
        f"`compile`: {name} is {value}; expected at least 1. Correct it."
        for name, value in sizes.items()
        if value < 1
    ]
    problems += [
        f"`compile`: {name} is {value!r}, which QEfficient's graph has settled. Leave it out, or export the model by "
        "qeff-cloud-export."
        for name, value in fields.items()
        if value is not None and name not in {"target", *_SIZES, *options} - OF_GRAPHS
    ]
    problems += conflicts.problems({}, options)
    if problems:
        raise PlanError(problems)
    compiled = compile_foreign(graph, folder, sizes, options)
    if compiled == folder:
        warnings.warn(
            f"There is no Cloud AI SDK here: {str(folder)!r} has what it compiles. Run {SCRIPT} in it where the SDK "
            "is, with the graph where it is now.",
            stacklevel=3,
        )
    return str(compiled)
