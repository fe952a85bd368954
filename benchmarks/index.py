# SPDX-License-Identifier: Apache-2.0
"""Claim: among 10,000 packages the right one is found in 150 ms, after at most 1.2 MB was transferred once.

Makes an index of random packages, serves it on the loopback, and resolves packages of it. Prints JSON: bytes sent when
the index is new and when it is not; milliseconds by the clock and of the processor, of `resolve` in a process that asks
again, online and offline, and of the whole command; all of it also for as many packages of one model alone.

    python benchmarks/index.py [--packages 10000] [--models 1250] [--repeat 20]
"""

import argparse
import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from measuring import machine

from qeff_zoo.hub.index import INDEX_NAME, Entry, Index, variant_name
from qeff_zoo.hub.index_files import encode
from qeff_zoo.hub.resolve import resolve
from qeff_zoo.settings import OFFLINE_ENV, STORES_ENV

#: What is asked of a package; another one is meant each time.
_ASKED = ("target", "weights", "ctx_len")


def random_index(packages: int, models: int) -> Index:
    """Make an index as a zoo of that size would have it: keys and digests are random, and so are most choices."""
    draw = random.Random(0)
    return Index(
        packages, tuple(_entry(number, number % models, draw) for number in range(packages))
    )


def _entry(number: int, model: int, draw: random.Random) -> Entry:
    target = draw.choice(("ort", "qaic"))
    axes: dict[str, Any] = {
        "target": target,
        "task": "text-generation",
        "method": "none",
        "weights": draw.choice(("fp32", "int8", "int4")),
        "prefill_seq_len": draw.choice((128, 256)),
        "ctx_len": draw.choice((2048, 4096, 8192, 16384, 32768)),
        "batch_size": 1,
    }
    if draw.random() < 0.5:
        axes |= {"continuous_batching": True, "full_batch_size": draw.choice((4, 8, 16))}
    if target == "qaic":
        axes |= {
            "num_cores": draw.choice((14, 16)),
            "num_devices": draw.choice((1, 4)),
            "mxfp6_matmul": True,
        }
    tool, version = (
        ("onnxruntime", "1.31.1")
        if target == "ort"
        else ("qaic-apps-sdk", draw.choice(("1.20.2", "1.21.0")))
    )
    seconds = draw.randrange(1_750_000_000, 1_800_000_000)
    return Entry(
        path=f"packages/{variant_name(axes)}/{_hex(f'key {number}')[:16]}",
        manifest=_hex(f"manifest {number}"),
        model=f"org-{model % 40}/model-{model}",
        model_type="llama",
        revision=_hex(f"revision {model}")[:40],
        license="apache-2.0",
        size=draw.randrange(10**8, 10**11),
        finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
        validated=draw.choice(("checkpoint", "device")),
        signed=True,
        axes=axes,
        needs={tool: f">={version}"},
        tested={tool: version},
    )


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def served(content: bytes) -> Iterator[tuple[str, list[int]]]:
    """Serve an index with its etag; give the URL, and the bytes that each answer had."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            found = self.path == f"/{INDEX_NAME}"
            known = self.headers.get("If-None-Match") == etag
            body = content if found and not known else b""
            self.send_response(304 if found and known else 200 if found else 404)
            self.send_header("ETag", etag)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            sent.append(len(body))

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()


def milliseconds(actions: Iterable[Callable[[], object]]) -> dict[str, float]:
    """Do one thing after another; give the medians of what they took."""
    clock, processor = [], []
    for action in actions:
        begun, worked = time.perf_counter(), _processor_seconds()
        action()
        clock.append((time.perf_counter() - begun) * 1000)
        processor.append((_processor_seconds() - worked) * 1000)
    return {
        "clock": round(statistics.median(clock), 1),
        "processor": round(statistics.median(processor), 1),
    }


def _processor_seconds() -> float:
    """Count this process, and those that it started and that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(index: Index, repeat: int) -> dict[str, Any]:
    """Resolve packages of an index."""
    content = encode(index)
    meant = random.Random(1).choices(index.entries, k=repeat)
    asks = [partial(resolve, one.model, {axis: one.axes[axis] for axis in _ASKED}) for one in meant]
    with served(content) as (url, sent):
        os.environ[STORES_ENV] = url
        found = asks[0]()
        cold = sum(sent)
        sent.clear()
        warm, again = milliseconds(asks), sum(sent)
        command = [sys.executable, "-m", "qeff_zoo", "resolve", meant[0].model, "--json"]
        run = partial(subprocess.run, command, capture_output=True, check=False)
        whole = milliseconds([run] * 5)
    os.environ[OFFLINE_ENV] = "1"
    try:
        offline = milliseconds(asks)
    finally:
        del os.environ[OFFLINE_ENV]
    return {
        "packages": len(index.entries),
        "models": len(index.models),
        "candidates": len(found.candidates),
        "cold_bytes": cold,
        "warm_bytes": again,
        "warm_ms": warm,
        "offline_ms": offline,
        "command_ms": whole,
    }


def main() -> None:
    """Measure an index of many models, and one of as many packages of one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=1250)
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    cases = [(arguments.packages, arguments.models), (arguments.packages, 1)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["QEFF_HOME"] = str(Path(folder, "home"))
        os.environ["XDG_CONFIG_HOME"] = folder
        figures = [measure(random_index(*case), arguments.repeat) for case in cases]
    json.dump({"machine": machine(["huggingface_hub"]), "cases": figures}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
