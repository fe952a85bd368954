# SPDX-License-Identifier: Apache-2.0
"""Claim: images are encoded and prompts run as fast as by llama.cpp's mtmd at the same bits.

Takes the LLaVA of `vision.py`, builds it in each storage, and writes it as GGUF files of the same bits by
`mtmd_peer.py`: 8.5 for each weight of int8 and Q8_0, 8 of w8a8, 4.6 and 4.5 of int4 and Q4_0. A package and llama.cpp,
in a process of its own, take turns at the same image and prompt; that both compute the same is said by the distance
of their features and by the first token. Judged is CPU time on one thread. Prints JSON.

    python benchmarks/mtmd.py --peer PYTHON [--weights fp32 w8a8 int8 int4] [--repeat 5] [--cache DIR]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import machine
from random_models import build, save
from vision import PACKAGES, SIDE, TEXT, make, ours

_KINDS = {"fp32": "F32", "w8a8": "Q8_0", "int8": "Q8_0", "int4": "Q4_0"}
_TIE = 0.95  # times as fast
_SCRIPT = Path(__file__).with_name("mtmd_peer.py")
_VERSION = "import importlib.metadata as m; print(m.version('llama-cpp-python'))"


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", required=True, metavar="PYTHON")
    parser.add_argument("--weights", nargs="+", choices=[*_KINDS], default=[*_KINDS])
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns of each")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(PACKAGES)
    version = subprocess.run(
        [arguments.peer, "-c", _VERSION], check=True, stdout=subprocess.PIPE, text=True
    )
    facts["packages"]["llama-cpp-python"] = version.stdout.strip()
    checkpoint = save(arguments.cache / "llava-0.5b", make)
    found = {weights: compare(arguments, checkpoint, weights) for weights in arguments.weights}
    tokens = {"image": (SIDE // 16) ** 2, "text": TEXT}
    answer = {"machine": facts, "tokens": tokens, "at least": _TIE, "weights": found}
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


def compare(arguments: argparse.Namespace, checkpoint: Path, weights: str) -> dict[str, Any]:
    """Let a package and llama.cpp take turns."""
    import numpy as np

    from qeff_zoo import load

    kind = _KINDS[weights]
    files = arguments.cache / f"llava-0.5b-{kind}"
    command = [arguments.peer, str(_SCRIPT)]
    subprocess.run([*command, "convert", str(checkpoint), str(files), kind], check=True)
    environment = {**os.environ, "QEFF_HOME": str(arguments.cache / "vision-store")}
    package = build(checkpoint, environment, weights=weights, ctx_len=1024)
    session: Any = load(package, threads=1)
    random, turns = np.random.default_rng(0), []
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen(
            [*command, "serve", str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as peer,
    ):
        for _ in range(arguments.repeat + 1):
            image = random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            text = random.integers(0, 100_000, TEXT).tolist()
            pixels = (image.transpose(2, 0, 1)[None] / np.float32(255) - 0.5) / 0.5
            np.save(Path(name, "image.npy"), image)
            theirs = _ask(peer, {"pixels": str(Path(name, "image.npy")), "text": text})
            mine = ours(session, pixels, text)
            (features,) = session.reader.look({"pixel_values": pixels}).features.values()
            apart = np.linalg.norm(features - np.load(theirs["features"]))
            relative = float(apart / np.linalg.norm(features))
            turns.append({"qeff-zoo": mine, "mtmd": theirs, "apart": relative})
            print(json.dumps(turns[-1]), file=sys.stderr)
        assert peer.stdin is not None
        peer.stdin.close()
    return judged(turns[1:])


def _ask(peer: "subprocess.Popen[str]", asked: dict[str, Any]) -> dict[str, Any]:
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(json.dumps(asked) + "\n")
    peer.stdin.flush()
    answer: dict[str, Any] = json.loads(peer.stdout.readline())
    return answer


def judged(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians of CPU seconds, and of ratios within a turn."""
    parts = ("encode", "prefill")
    seconds = {
        who: {
            part: round(statistics.median(turn[who][part] for turn in turns), 3) for part in parts
        }
        for who in ("qeff-zoo", "mtmd")
    }
    ratios = {
        part: round(statistics.median(t["mtmd"][part] / t["qeff-zoo"][part] for t in turns), 3)
        for part in parts
    }
    same = [turn["qeff-zoo"]["token"] == turn["mtmd"]["token"] for turn in turns]
    return {
        "cpu seconds": seconds,
        "times as fast as mtmd": ratios,
        "holds": {part: ratio >= _TIE for part, ratio in ratios.items()},
        "features are apart by": round(statistics.median(turn["apart"] for turn in turns), 5),
        "same token": f"{sum(same)} of {len(same)}",
    }


if __name__ == "__main__":
    main()
