# SPDX-License-Identifier: Apache-2.0
"""Claim: a package takes little more memory than its file and its tokenizer.

Opens each package in a process of its own, which generates a few tokens, and measures the process at every step: its
resident set, its proportional set and its peak. Given the GGUF file that a package was built of, opens it by llama.cpp
as well, with the library in xllamacpp. Prints JSON, in MB of 2**20 bytes.

    python benchmarks/memory.py PACKAGE [PACKAGE …] [--gguf FILE …]
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from measuring import machine

_PACKAGES = ("qeff-zoo", "onnxruntime", "tokenizers", "numpy", "xllamacpp")
_TEXT = "The quick brown fox jumps over the lazy dog. " * 8
_TOKENS = 16


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--gguf", nargs="*", default=[], metavar="FILE")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        steps = _of_llama_cpp if arguments.alone.endswith(".gguf") else _of_package
        json.dump(steps(Path(arguments.alone)), sys.stdout)
        return
    rows = [_alone(path) for path in (*arguments.packages, *arguments.gguf)]
    json.dump({"machine": machine(_PACKAGES), "rows": rows}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _alone(path: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", path]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def _of_package(folder: Path) -> dict[str, Any]:
    """Open a package; its tokenizer is read before its graph."""
    import numpy  # noqa: F401

    start = _memory()
    from qeff_zoo import load
    from qeff_zoo.runtime.text.tokenizer import Tokenizer

    imported = _memory()
    known = Tokenizer(folder)
    tokenizer = _memory()
    del known
    session: Any = load(folder)
    opened = _memory()
    session.generate([_TEXT], generation_len=_TOKENS)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    matrices = [matrix for each in manifest["programs"] for matrix in each["numerics"]["matrices"]]
    matrices = [{"kept": False, **matrix} for matrix in matrices]
    per_channel = any(not matrix["format"]["block"] for matrix in matrices)
    rounded = "w8a8" if per_channel else "int4" if matrices else "fp32"
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {
        "model": str(manifest["name"]),
        "weights": "stored" if matrices and all(matrix["kept"] for matrix in matrices) else rounded,
        "file_mb": weights >> 20,
        "python": start,
        "imported": imported,
        "tokenizer": tokenizer,
        "opened": opened,
        "generated": _memory(),
    }


def _of_llama_cpp(file: Path) -> dict[str, Any]:
    """Open a GGUF file by llama.cpp, with a context of 512 tokens."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
    import llama_cpp

    imported = _memory()
    with llama_cpp.opened(file) as model:
        opened = _memory()
        model.logits(model.encode(_TEXT))
        return {
            "model": file.name,
            "weights": "llama.cpp",
            "file_mb": file.stat().st_size >> 20,
            "imported": imported,
            "opened": opened,
            "generated": _memory(),
        }


def _memory() -> dict[str, int]:
    """Return the memory of this process."""
    process = Path("/proc/self")
    text = (process / "smaps_rollup").read_text() + (process / "status").read_text()
    names = {"rss": "Rss", "pss": "Pss", "anonymous": "Anonymous", "peak": "VmHWM"}
    found = {name: re.search(rf"^{line}:\s+(\d+) kB", text, re.M) for name, line in names.items()}
    return {name: int(match[1]) >> 10 for name, match in found.items() if match}


if __name__ == "__main__":
    main()
