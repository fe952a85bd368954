# SPDX-License-Identifier: Apache-2.0
"""Claim: the packages of a model are found in 30 ms and 100 KB, among ten thousand packages and among a million.

Makes indexes of random packages, of which a model has eight, serves their files on the loopback, and resolves models.
Prints JSON, for each number of packages: the files of the index and their bytes; bytes sent and milliseconds of
`resolve`, by the clock and of the processor, when the model is asked for the first time, again, offline, and after
another package was published; of the whole command; and what one more package takes. The same for packages of one model
alone.

    python benchmarks/index.py [--packages 10000 100000 1000000] [--repeat 20]
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from measuring import machine

from qeff_zoo.hub.index import INDEX_NAME, Entry, Index, variant_name
from qeff_zoo.hub.index_files import decode, decode_file, file_path, files_of
from qeff_zoo.hub.index_tree import PAGE_BITS, Leaf, Page, Reference, bits_of, divided
from qeff_zoo.hub.resolve import resolve
from qeff_zoo.settings import OFFLINE_ENV, STORES_ENV

#: More packages are made and written part by part.
_AT_ONCE = 50_000


def write_index(folder: Path, packages: int, models: int, meant: Sequence[str]) -> float:
    """Write an index as a zoo of that size would have it: keys and digests are random, and so are most choices.

    Args:
        folder: Receives the files.
        packages: Number of packages.
        models: Number of models.
        meant: Model ids. Of a large index, the root is whole, and only parts with these are below it.

    Returns:
        The share of the index that was written.
    """
    if packages <= _AT_ONCE:
        entries = random_entries(packages, models)
        _write(folder, files_of(Index(packages, divided(Leaf(entries)))))
        return 1.0
    by_prefix: dict[str, list[int]] = defaultdict(list)
    for model in range(models):
        by_prefix[bits_of(_model_id(model))[:PAGE_BITS]].append(model)
    needed = {bits_of(model)[:PAGE_BITS] for model in meant}
    parts: dict[str, Leaf | Page | Reference] = {}
    for prefix, there in by_prefix.items():
        if prefix in needed:
            node = divided(Leaf(random_entries(packages, models, there)), prefix)
            files = files_of(Index(tree=Page({prefix: node})))
            parts |= _parts(decode(files.pop(INDEX_NAME)))
            _write(folder, files)
        else:
            count = sum(len(range(model, packages, models)) for model in there)
            parts[prefix] = Reference(_hex(f"part {prefix}"), count)
    _write(folder, files_of(Index(packages, Page(parts))))
    return len(needed) / len(by_prefix)


def _parts(index: Index) -> Mapping[str, Leaf | Page | Reference]:
    return index.tree.parts if isinstance(index.tree, Page) else {}


def random_entries(
    packages: int, models: int, which: Iterable[int] | None = None
) -> tuple[Entry, ...]:
    """Make packages as a zoo would have them.

    Args:
        packages: Number of packages of all models.
        models: Number of models.
        which: Numbers of the models whose packages are made; None for all.
    """
    return tuple(
        _entry(number, model)
        for model in (range(models) if which is None else which)
        for number in range(model, packages, models)
    )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _model_id(model: int) -> str:
    return f"org-{model % 40}/model-{model}"


def _entry(number: int, model: int) -> Entry:
    draw = random.Random(number)
    target = "ort" if number == model else draw.choice(("ort", "qaic"))  # one that runs here
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
        model=_model_id(model),
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
def served(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Serve the files of an index with etags; give the URL, and the bytes that each answer had."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            file = folder / self.path.lstrip("/")
            content = file.read_bytes() if file.is_file() else None
            etag = f'"{hashlib.sha256(content or b"").hexdigest()}"'
            known = self.headers.get("If-None-Match") == etag
            body = content if content and not known else b""
            self.send_response(404 if content is None else 304 if known else 200)
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


def measure(packages: int, models: int, repeat: int) -> dict[str, Any]:
    """Resolve models of an index of that many packages."""
    with tempfile.TemporaryDirectory() as place:
        home, zoo = Path(place, "home"), Path(place, "zoo")
        os.environ["QEFF_HOME"] = str(home)
        meant = [_model_id(model) for model in random.Random(1).choices(range(models), k=repeat)]
        share = write_index(zoo, packages, models, meant)
        sizes = [file.stat().st_size for file in zoo.rglob("*.gz")]
        asks = [partial(resolve, model, {"target": "ort"}) for model in meant]
        costs: list[int] = []

        with served(zoo) as (url, sent):
            os.environ[STORES_ENV] = url

            def anew(ask: Callable[[], object]) -> Callable[[], object]:
                shutil.rmtree(home / "remotes", ignore_errors=True)
                costs.append(len(sent))
                return ask

            asks[0]()  # imports
            first = milliseconds(map(anew, asks))
            ends = [*costs[1:], len(sent)]
            first["bytes"] = max(sum(sent[i:j]) for i, j in zip(costs, ends, strict=True))
            first["files"] = max(j - i for i, j in zip(costs, ends, strict=True))
            sent.clear()
            milliseconds(asks)
            sent.clear()
            again = {**milliseconds(asks), "bytes": sum(sent)}
            published = _publish(zoo, packages, meant[-1])
            sent.clear()
            after = {**milliseconds(asks[:1]), "bytes": sum(sent)}
            command = [sys.executable, "-m", "qeff_zoo", "resolve", meant[0], "--json"]
            run = partial(subprocess.run, command, capture_output=True, check=False)
            whole = milliseconds([run] * 5)
        os.environ[OFFLINE_ENV] = "1"
        try:
            offline = milliseconds(asks[:1] * repeat)
        finally:
            del os.environ[OFFLINE_ENV]
    return {
        "packages": packages,
        "models": models,
        "files": round(len(sizes) / share),
        "bytes": round(sum(sizes) / share),
        "largest_file_bytes": max(sizes),
        "first": first,
        "again": again,
        "offline": offline,
        "after_a_publication": after,
        "command": whole,
        "publication": published,
    }


def _publish(zoo: Path, packages: int, model: str) -> dict[str, Any]:
    """Add a package; give what was written, and the milliseconds without a disk or a network."""

    def read(prefix: str, reference: Reference) -> Leaf | Page:
        content = (zoo / file_path(prefix, reference)).read_bytes()
        return decode_file(content, prefix, reference)

    before = replace(decode((zoo / INDEX_NAME).read_bytes()), read=read)
    entry = replace(_entry(packages, 0), model=model)
    written: dict[str, bytes] = {}
    spent = milliseconds([lambda: written.update(files_of(before.with_entry(entry)))])
    _write(zoo, written)
    return {**spent, "files": len(written), "bytes": sum(map(len, written.values()))}


def main() -> None:
    """Measure indexes of many models, and one of packages of one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--packages", type=int, nargs="+", default=[500, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    cases = [*((number, number // 8) for number in arguments.packages), (1000, 1)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = folder
        figures = [measure(*case, arguments.repeat) for case in cases]
    json.dump({"machine": machine(["huggingface_hub"]), "cases": figures}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
