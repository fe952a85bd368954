# SPDX-License-Identifier: Apache-2.0
"""Whether every tensor that a package stores is the checkpoint's: no text reaches all rows of an embedding, or experts.

In: a package, and the result of `qeff_zoo.validation.reference.stored_weights` for its weight file. Out: one check.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.graph.external_data import WEIGHTS
from qeff_zoo.package import Package
from qeff_zoo.validation.judgement.parity import Check
from qeff_zoo.weights.importance import IMPORTANCE
from qeff_zoo.weights.smoothing import SMOOTHING

_STAGE = "weights"
_CANARY = "the largest value of one tensor set to 0"
#: Ends of the names of initializers that read a tensor in another shape, or once more: see `Matrices`.
_READERS = re.compile(r"(\.blocks)?(\.use\d+)?$")
_NOWHERE = ""  # bytes that are no tensor


def request_of(package: Package) -> dict[str, Any]:
    """Return the part of a request to the reference: the weight file, importance and smoothing, if there are any."""
    path = package.path / WEIGHTS
    beside = {"importance": package.path / IMPORTANCE, "smoothing": package.path / SMOOTHING}
    part: dict[str, Any] = {
        name: str(file.absolute()) for name, file in beside.items() if file.is_file()
    }
    if path.is_file():
        part |= {"weight_file": str(path.absolute()), "reads": dict(_reads(package, path))}
    return part


def _reads(package: Package, path: Path) -> Iterator[tuple[str, str]]:
    """Yield what graphs read: the name of each tensor, and of the one that lies there."""
    import onnx  # onnx_ir would make an object of every node

    locations = _places(path)
    for program in package.programs:
        graph = package.path / program.path
        if graph.suffix != ".onnx":
            continue
        for tensor in onnx.load(graph, load_external_data=False).graph.initializer:
            lies = {entry.key: entry.value for entry in tensor.external_data}
            if lies.get("location") == WEIGHTS:
                span = int(lies.get("offset", 0)), int(lies.get("length", 0))
                yield _READERS.sub("", tensor.name, count=1), locations.get(span, _NOWHERE)


def _places(path: Path) -> dict[tuple[int, int], str]:
    """Return the tensors of a safetensors file by their first byte and their length."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    spans = {
        name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"
    }
    return {(8 + length + start, stop - start): name for name, (start, stop) in spans.items()}


def judge(answer: Mapping[str, Any] | None, level: str, against: Mapping[str, Any]) -> list[Check]:
    """Return the check of a package's stored weights; none for a package without a weight file.

    Args:
        answer: Answer of `reference.stored_weights`.
        level: Level of the validation.
        against: The reference of the comparison.
    """
    if answer is None:
        return []
    error, zeroed = answer["error"], answer["zeroed"]
    check: Check = {
        "level": level,
        "stage": _STAGE,
        "metric": "max_stored_error",
        "value": float(f"{error:.6g}"),
        "op": "<=",
        "threshold": 1.0,
        "threshold_from": "exact",
        "positions": max(1, answer["values"]),
        "passed": error <= 1.0 < zeroed and answer["tensors"] > 0,
        "against": dict(against),
        "note": _note(answer),
    }
    if zeroed > 1.0:
        canary = {"mutation": _CANARY, "value": float(f"{zeroed:.6g}"), "failed": True}
        check["canary"] = canary
    return [check]


def reported(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the tensors that no parameter of the reference stands for, with the reasons."""
    left = (answer or {}).get("left", {})
    return {"weights_not_compared": dict(left)} if left else {}


def _note(answer: Mapping[str, Any]) -> str:
    sentences = [f"{answer['tensors']:,} tensors, in units of the allowed error"]
    if answer["error"] > 1.0:
        sentences.append(f"{answer['worst']!r} has other values than the checkpoint")
    if count := answer["left_count"]:
        sentences.append(f"{count} not compared: {', '.join(map(repr, answer['left']))}")
    return "; ".join(sentences)
