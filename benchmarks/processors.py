# SPDX-License-Identifier: Apache-2.0
"""Claim: transformers' image processors and feature extractors more than double the cold start of `run`.

Two questions, in CPU seconds and peak memory of processes that take turns (ABBA). A *process* imports a processor and
prepares one image, or one recording: the package's own code beside transformers' class, for one class of each family
that runs without torch. A *command* is `run` of a tiny package on an image or a recording, and `serve` until it prints
its URL, with either. Torch is hidden from all of these processes, as on a machine that only runs packages; once more it
is visible, as on a machine that builds them, where transformers imports it. Prints JSON.

    python benchmarks/processors.py [--speech CHECKPOINT] [--repeat 3]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from os import environ
from pathlib import Path
from typing import Any

from measuring import machine, measure

PACKAGES = ("qeff-zoo", "transformers", "torch", "numpy", "pillow", "onnxruntime")
_EXAMPLES = Path(__file__).parents[1] / "examples"
_CHECKPOINT, _RECORDING = _EXAMPLES / "tiny-vlm", _EXAMPLES / "speech.wav"
_IMAGE = _CHECKPOINT / "images" / "four-blue-crosses.png"
_MOST = 2.0  # times the start with the package's own code
#: Class by family, of those that run without torch and make the same arrays.
_FAMILIES = {
    "clip": "CLIP", "siglip": "Siglip", "qwen2_vl": "Qwen2VL", "llava_next": "LlavaNext", "idefics3": "Idefics3",
    "mllama": "Mllama", "gemma3": "Gemma3",
}  # fmt: skip
_HIDE = """
import sys
from importlib.machinery import PathFinder
class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in ("torch", "torchvision")
        return None if hidden else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
"""
_OWN_IMAGE = """
from qeff_zoo.media.image_processor import image_processor
image_processor({{"image_processor_type": "{name}ImageProcessor"}})(["{image}"])
"""
_TRANSFORMERS_IMAGE = """
from PIL import Image
from transformers.models.{family}.image_processing_pil_{family} import {name}ImageProcessorPil
{name}ImageProcessorPil()(images=[[Image.open("{image}").convert("RGB")]], return_tensors="np")
"""
_OWN_AUDIO = """
from qeff_zoo.media.features import find
from qeff_zoo.media.audio import read_audio
features = find({{"feature_extractor_type": "WhisperFeatureExtractor"}})
features.compute(read_audio("{recording}", features.rate))
"""
_TRANSFORMERS_AUDIO = """
from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor
from qeff_zoo.media.audio import read_audio
WhisperFeatureExtractor()(read_audio("{recording}", 16000), sampling_rate=16000, return_tensors="np")
"""
#: Puts transformers' classes in the place of the package's own code.
_REPLACE = """
from qeff_zoo.media import features, image_processor
def rule(images, settings):
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    return dict(SiglipImageProcessorPil(**settings)(images=list(images), return_tensors="np"))
name = "SiglipImageProcessor"
image_processor.PROCESSORS = {**image_processor.PROCESSORS, name: (rule, image_processor.PROCESSORS[name][1])}
own = features.KINDS["WhisperFeatureExtractor"]
def extractor(settings):
    from dataclasses import replace
    from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor
    made = WhisperFeatureExtractor(**{name: value for name, value in settings.items() if not name.endswith("_type")})
    def compute(samples):
        return made(samples, sampling_rate=made.sampling_rate, return_tensors="np", padding=False).input_features[0].T
    return replace(own(settings), compute=compute, in_steps=None)
features.KINDS = {**features.KINDS, "WhisperFeatureExtractor": extractor}
"""
#: What a server does before its first request, so that its processor's import is not left to a client.
_PREPARE = """
from qeff_zoo.media.image_processor import image_processor
image_processor({{"image_processor_type": "SiglipImageProcessor"}})(["{image}"])
"""
_MAIN = """
import sys
from qeff_zoo.cli import main
sys.exit(main(sys.argv[1:]))
"""


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--speech", metavar="CHECKPOINT", help="of Whisper, for `run` on a recording"
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="turns of each, twice")
    arguments = parser.parse_args()
    environ.setdefault("OMP_NUM_THREADS", "1")
    facts, turns = machine(PACKAGES), arguments.repeat
    names = {"image": str(_IMAGE), "recording": str(_RECORDING)}
    processes = {
        family: _beside(
            _python(_HIDE + _OWN_IMAGE.format(name=name, **names)),
            _python(_HIDE + _TRANSFORMERS_IMAGE.format(family=family, name=name, **names)),
            turns,
        )
        for family, name in _FAMILIES.items()
    }
    processes["whisper"] = _beside(
        _python(_HIDE + _OWN_AUDIO.format(**names)),
        _python(_HIDE + _TRANSFORMERS_AUDIO.format(**names)),
        turns,
    )
    commands = _commands(arguments.speech, turns)
    ratios = [command["cpu_ratio"] for name, command in commands.items() if name.startswith("run")]
    found = {"processes": processes, "commands": commands, "claim_holds": min(ratios) > _MOST}
    json.dump({"machine": facts, **found}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _commands(speech: str | None, turns: int) -> dict[str, Any]:
    """Return the figures of whole commands."""
    with tempfile.TemporaryDirectory() as store:
        environ["QEFF_HOME"] = store
        package = _build(str(_CHECKPOINT))
        run = ["run", package, "--image", str(_IMAGE), "--prompt", "What?", "--chat"]
        run += ["--generation-len", "4", "--threads", "1", "--json"]
        own, other = _HIDE + _MAIN, _HIDE + _REPLACE + _MAIN
        found = {"run --image": _beside(_python(own, *run), _python(other, *run), turns)}
        if speech:
            audio_package = _build(speech)
            run_audio = [
                "run",
                audio_package,
                str(_RECORDING),
                "--generation-len",
                "4",
                "--threads",
                "1",
            ]
            found["run RECORDING"] = _beside(
                _python(own, *run_audio), _python(other, *run_audio), turns
            )
        seeing = _PREPARE.format(image=_IMAGE)
        serve = ["serve", package, "--port", "0", "--threads", "1"]
        found["serve"] = _beside(
            _python(_HIDE + seeing + _MAIN, *serve),
            _python(_HIDE + _REPLACE + seeing + _MAIN, *serve),
            turns,
            _until_ready,
        )
        found["run --image, torch installed"] = _beside(
            _python(_MAIN, *run), _python(_REPLACE + _MAIN, *run), turns
        )
    return found


def _build(checkpoint: str) -> str:
    """Build a package in a process of its own: a process counts the memory of the one that started it as its own."""
    command = [sys.executable, "-m", "qeff_zoo", "build", checkpoint, "--no-validate"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()[-1]


def _python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def _ended(command: Sequence[str]) -> tuple[float, float]:
    """Return CPU seconds and peak memory of a command that ends, in MiB."""
    done = measure(command, environ)
    return done.cpu_seconds, done.peak_rss_bytes / 2**20


def _until_ready(command: Sequence[str]) -> tuple[float, float]:
    """Return CPU seconds and peak memory of a server when it prints its URL, in MiB."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environ)) as server:
        assert server.stdout
        server.stdout.readline()
        time.sleep(0.2)
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii", errors="replace")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        fields = (
            Path(f"/proc/{server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        )
        server.kill()
    return (int(fields[11]) + int(fields[12])) / 100, int(peak.split()[1]) / 1024


def _beside(
    own: Sequence[str],
    other: Sequence[str],
    turns: int,
    take: Callable[[Sequence[str]], tuple[float, float]] = _ended,
) -> dict[str, Any]:
    """Return medians of two commands that take turns, own, other, other, own."""
    figures: dict[str, list[tuple[float, float]]] = {"own": [], "transformers": []}
    for command in (own, other):
        take(command)  # bytecode, and the files in the page cache
    for _ in range(turns):
        for which in ("own", "transformers", "transformers", "own"):
            figures[which].append(take(own if which == "own" else other))
    found = {
        which: {
            "cpu_seconds": round(statistics.median(cpu for cpu, _ in all_of), 2),
            "peak_rss_mib": round(statistics.median(peak for _, peak in all_of)),
        }
        for which, all_of in figures.items()
    }
    ratio = found["transformers"]["cpu_seconds"] / found["own"]["cpu_seconds"]
    return {**found, "cpu_ratio": round(ratio, 2)}


if __name__ == "__main__":
    main()
