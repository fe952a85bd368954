# SPDX-License-Identifier: Apache-2.0
"""Claim: weights stream at the speed of memory, in little memory of their own.

Makes a bf16 checkpoint of random weights and streams it once for each way to store weights, each in its own process.
Prints JSON: CPU
and wall seconds, bytes, and the peak of anonymous memory above what the process had before.

    python benchmarks/weights.py [--gigabytes 1] [--weights fp32 int4] [--folder DIR]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from qeff_zoo.checkpoint.encoded import Encoded
from qeff_zoo.checkpoint.safetensors_index import TensorReader, index_tensors
from qeff_zoo.graph.numerics import WEIGHTS, format_of
from qeff_zoo.weights.writing import Slot, plan_file, write

_SHAPE = (8192, 2048)  # of every tensor, bf16


def make_checkpoint(path: Path, gigabytes: float) -> None:
    """Write a safetensors file of normally distributed bf16 matrices."""
    size = 2 * _SHAPE[0] * _SHAPE[1]
    count = max(1, round(gigabytes * 1e9 / size))
    header = {
        f"layers.{i}.weight": {
            "dtype": "BF16",
            "shape": _SHAPE,
            "data_offsets": (i * size, (i + 1) * size),
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(count):
            values = random.standard_normal(_SHAPE, np.float32) * np.float32(0.02)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


class Source(TensorReader):
    """A checkpoint's tensors without the checkpoint."""

    def __init__(self, path: Path) -> None:
        self.tensors = index_tensors([path])
        self.encoded: dict[str, Encoded] = {}
        super().__init__(self.tensors)

    read_stored = TensorReader.read


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def measure(checkpoint: Path, weights: str, output: Path) -> dict[str, float | int | str]:
    """Stream the checkpoint once; runs in its own process."""
    source = Source(checkpoint)
    layout = plan_file(
        [Slot(name, name, format_of(weights)) for name in source.tensors], source.tensors
    )
    before, peak, done = _status("RssAnon"), [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], _status("RssAnon"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    usage, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    written = write(layout, source, output)
    wall, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    done.set()
    sampler.join()
    output.unlink()
    cpu = used.ru_utime - usage.ru_utime + used.ru_stime - usage.ru_stime
    parameters = sum(info.nbytes for info in source.tensors.values()) // 2
    return {
        "weights": weights,
        "parameters": parameters,
        "bytes": written.nbytes,
        "cpu_seconds": round(cpu, 3),
        "system_seconds": round(used.ru_stime - usage.ru_stime, 3),
        "wall_seconds": round(wall, 3),
        "cpu_seconds_per_1.24e9_parameters": round(cpu * 1.24e9 / parameters, 2),
        "wall_megabytes_per_second": round(written.nbytes / wall / 1e6),
        "peak_anonymous_bytes": max(0, peak[0] - before),
        "peak_rss_bytes": _status("VmHWM"),
    }


def main() -> None:
    """Run every way in turn and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the bf16 checkpoint")
    parser.add_argument("--weights", nargs="+", default=WEIGHTS)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--one", nargs=3, metavar=("CHECKPOINT", "WEIGHTS", "OUTPUT"))
    arguments = parser.parse_args()
    if arguments.one:
        checkpoint, weights, output = arguments.one
        json.dump(measure(Path(checkpoint), weights, Path(output)), sys.stdout)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        checkpoint = Path(folder, "model.safetensors")
        make_checkpoint(checkpoint, arguments.gigabytes)
        os.sync()
        runs = [
            subprocess.run(
                [sys.executable, __file__, "--one", checkpoint, weights, Path(folder, "out")],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for weights in arguments.weights
        ]
    json.dump([json.loads(run) for run in runs], sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
