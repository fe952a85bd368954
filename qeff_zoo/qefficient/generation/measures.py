# SPDX-License-Identifier: Apache-2.0
"""QEfficient's speed of a generation, its result without texts, and files of a program's calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, PerfMetrics
from qeff_zoo.runtime.program import Array

#: Calls that `write_io_files` has described since the last reset.
_calls: list[list[dict[str, Any]]] = []


@dataclass(frozen=True)
class CloudAI100ExecInfoNew:
    """Tokens of prompts, without texts.

    Args:
        batch_size: Prompts that the program takes at a time.
        generated_ids: Tokens of each prompt.
        perf_metrics: Speed of the generation.
    """

    batch_size: int
    generated_ids: Sequence[Array] | Array
    perf_metrics: PerfMetrics

    def __repr__(self) -> str:
        """Return the lines of `CloudAI100ExecInfo`."""
        return repr(CloudAI100ExecInfo(self.batch_size, [], [], self.perf_metrics))


def calculate_latency(
    total_decoded_tokens: int,
    loop_start: float,
    start: float,
    end: float,
    decode_pause_time: float = 0,
) -> tuple[float, float, float, float]:
    """Return seconds of prefill, tokens per second of decode calls and of all, and seconds of all.

    Args:
        total_decoded_tokens: Number of generated tokens.
        loop_start: Time at which decode calls began.
        start: Time of the first call.
        end: Time after the last call.
        decode_pause_time: Seconds of prefill between decode calls, in continuous batching.
    """
    total = end - start
    prefill = loop_start - start + decode_pause_time
    return prefill, total_decoded_tokens / (total - prefill), total_decoded_tokens / total, total


def write_io_files(
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    write_io_dir: str,
    write_io_subdir: str,
    write_io_name: str,
    include_dims: bool = False,
    reset: bool = False,
) -> None:
    """Write the arrays of a call as raw files, and a description of all calls since the last reset for qaic-runner.

    Args:
        inputs: Inputs by name.
        outputs: Outputs by name.
        write_io_dir: Folder of the description.
        write_io_subdir: Folder of the arrays, in `write_io_dir`.
        write_io_name: Name of the description, without `.json`.
        include_dims: Whether it has the shape of each array; those of retained states are always there.
        reset: Whether earlier calls are left out.
    """
    if reset:
        _calls.clear()
    folder = Path(write_io_dir, write_io_subdir)
    folder.mkdir(parents=True, exist_ok=True)
    call = list[dict[str, Any]]()
    for direction, arrays in (("in", inputs), ("out", outputs)):
        for name, array in arrays.items():
            np.asarray(array).tofile(folder / f"{name}.raw")
            entry: dict[str, Any] = {
                "path": f"{write_io_subdir}/{name}.raw",
                "io-direction": direction,
                "elem-size": array.itemsize,
                "map-to": name,
            }
            if include_dims or name.endswith("_RetainedState"):
                entry["dims"] = list(array.shape)
            call.append(entry)
    _calls.append(call)
    path = Path(write_io_dir, f"{write_io_name}.json")
    path.write_text(json.dumps({"IO-files": _calls}, indent=1), encoding="utf-8")
