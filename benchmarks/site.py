# SPDX-License-Identifier: Apache-2.0
"""Claim: a site of 10,000 packages is written in a minute, and no page of it loads more than 1 MB.

Makes a folder remote of that many packages, with an index and a manifest each, and writes its site: once to a new
folder, and once over the first. Then serves it on the loopback, and loads the start page and a page of a model in
Chromium (with Playwright, of extra `test`) without cache: bytes, and milliseconds until they can be used. Prints JSON.

    python benchmarks/site.py [--packages 10000] [--models 2500] [--repeat 5]
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from index import random_entries
from measuring import machine

from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.index_files import files_of
from qeff_zoo.hub.index_tree import Leaf, divided
from qeff_zoo.site import folder
from qeff_zoo.site.gather import gather

_STAGES = ("prefill", "chunked_prefill", "padded_batch", "decode", "ctx_len")
_LAYERS = 32


def manifest(entry: Entry, draw: random.Random) -> bytes:
    """Make what a site reads of a manifest, with as many matrices and states as a model of 32 layers has."""
    against = {
        "reference": "LlamaForCausalLM",
        "revision": entry.revision,
        "transformers": "5.23.0",
        "dtype": "float32",
        "patched": False,
    }
    limits = {"max_relative_error": 3e-4, "max_kl_divergence": 2e-9}
    checks = [
        {
            "level": "checkpoint", "stage": stage, "metric": metric, "value": limit * draw.random(), "op": "<=",
            "threshold": limit, "threshold_from": "noise-floor", "positions": 40, "passed": True, "against": against,
            "canary": {"mutation": "head 0 of 32 times 1.01", "value": limit * 50, "failed": True},
        }
        for stage in _STAGES
        for metric, limit in limits.items()
    ]  # fmt: skip
    form = {"bits": 4, "block": 64, "zero_points": False, "scale": "float32", "axis": 0}
    matrix = {
        "rows": 4096,
        "columns": 4096,
        "input_major": False,
        "format": form,
        "multiplied": True,
        "gathered": False,
    }
    names = [
        f"model.layers.{layer}.{name}_proj"
        for layer in range(_LAYERS)
        for name in ("q", "k", "v", "o", "gate", "up", "down")
    ]
    states = [
        {
            "name": f"past_{kind}.{layer}",
            "kind": "growing",
            "layer": layer,
            "dtype": "float16",
            "axes": ["batch_size", 8, "ctx_len", 128],
        }
        for layer in range(_LAYERS)
        for kind in ("key", "value")
    ]
    symbols = {"batch_size": "1", "ctx_len": str(entry.axes["ctx_len"]), "seq_len": "128"}
    return json.dumps(
        {
            "schema": "qeff-package/2",
            "name": entry.model,
            "target": {"name": entry.axes["target"], "needs": dict(entry.needs)},
            "spec": {"toolchain": {"onnx": "1.23.2", "torch": "2.13.0", **entry.tested}},
            "programs": [
                {
                    "specializations": [{"name": "Prefill", "symbols": symbols}],
                    "states": states,
                    "numerics": {"matrices": [{"name": name, **matrix} for name in names]},
                }
            ],
            "files": [{"path": "model.onnx.data", "size": entry.size, "role": "weights"}],
            "provenance": {
                "seconds": {"trace": 8.0, "weights": 60.0},
                "peak_rss_bytes": 2_000_000_000,
            },
            "weights": {"storage": entry.axes["weights"]},
            "validated": entry.validated,
            "validation": checks,
            "costs": {
                "weights": {
                    "metric": "kl_divergence",
                    "mean": 0.02,
                    "error": 0.001,
                    "positions": 40,
                }
            },
        }
    ).encode()


def write_remote(root: Path, packages: int, models: int) -> str:
    """Write a folder remote; give its URL."""
    draw, entries = random.Random(0), []
    for entry in random_entries(packages, models):
        content = manifest(entry, draw)
        place = root / entry.path
        place.mkdir(parents=True, exist_ok=True)
        (place / "manifest.json").write_bytes(content)
        entries.append(replace(entry, manifest=hashlib.sha256(content).hexdigest()))
    for name, content in files_of(Index(packages, divided(Leaf(tuple(entries))))).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root.as_uri()


def written(url: str, place: Path) -> dict[str, float]:
    """Write a site, and time its two halves."""
    begun = time.perf_counter(), time.process_time()
    zoo = gather([url])
    read = time.perf_counter()
    folder.write(zoo, place)
    return {
        "read_s": round(read - begun[0], 1),
        "write_s": round(time.perf_counter() - read, 1),
        "processor_s": round(time.process_time() - begun[1], 1),
    }


def loaded(page: Any, url: str, ready: Any, repeat: int) -> dict[str, float]:
    """Load a page; give its bytes, and the median of milliseconds until a part of it is there."""
    times, sent = [], 0
    for _ in range(repeat):
        page.context.clear_cookies()
        client = page.context.new_cdp_session(page)
        client.send("Network.setCacheDisabled", {"cacheDisabled": True})
        answers: list[int] = []

        def count(response: Any, answers: list[int] = answers) -> None:
            answers.append(int(response.header_value("content-length") or 0))

        page.on("response", count)
        begun = time.perf_counter()
        page.goto(url)
        ready.wait_for()
        times.append((time.perf_counter() - begun) * 1000)
        page.remove_listener("response", count)
        sent = sum(answers)
    return {"bytes": sent, "ms": round(statistics.median(times))}


def in_browser(site: Path, model: str, repeat: int) -> dict[str, Any]:
    """Load pages of a site in Chromium."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
    from playwright.sync_api import sync_playwright
    from static_server import served

    program = shutil.which("chromium")
    with sync_playwright() as playwright, served(site) as (url, _):
        browser = playwright.chromium.launch(
            executable_path=program, args=["--headless", "--no-sandbox"]
        )
        page = browser.new_page()
        searchable = page.locator("#count", has_text=" of ")
        found = {
            "start": loaded(page, f"{url}/index.html", searchable, repeat),
            "model": loaded(page, f"{url}/{model}.html", page.locator("#lines pre").first, repeat),
        }
        page.goto(f"{url}/index.html")
        searchable.wait_for()
        begun = time.perf_counter()
        page.get_by_label("Search").fill(model)
        page.locator("#count", has_text=re.compile(r"^1 of ")).wait_for()
        found["search"] = {"ms": round((time.perf_counter() - begun) * 1000)}
        browser.close()
    return found


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=2500)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    last = arguments.models - 1
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["QEFF_HOME"] = str(Path(scratch, "home"))
        url = write_remote(Path(scratch, "remote"), arguments.packages, arguments.models)
        site = Path(scratch, "site")
        first, again = written(url, site), written(url, site)
        sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
        pages = {path: size for path, size in sizes.items() if path.suffix == ".html"}
        own = Path(folder.__file__).parent
        code = [path for part in ("assets", "templates") for path in (own / part).iterdir()]
        figures = {
            "packages": arguments.packages,
            "models": arguments.models,
            "first": first,
            "again": again,
            "files": len(sizes),
            "bytes": sum(sizes.values()),
            "largest_page_bytes": max(pages.values()),
            "without_data_bytes": sum(path.stat().st_size for path in code),
            **in_browser(site, f"org-{last % 40}/model-{last}", arguments.repeat),
        }
    json.dump({"machine": machine(["jinja2", "playwright"]), **figures}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
