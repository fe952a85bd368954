# SPDX-License-Identifier: Apache-2.0
"""Claim: a package of Whisper takes at most 1.1 times as long as CTranslate2, and no longer than onnxruntime-genai.

Builds packages of a checkpoint in each storage, opens each, and faster-whisper with the model that the checkpoint was
converted from, in a process of its own, and lets them take turns at one recording. Judged is CPU time on one thread,
since others on the machine disturb it less. With --genai onnxruntime-genai takes its turns too, with a model of its own
builder in float32. It reads 30 seconds at most and writes no timestamps, so the package is compared with it at the same
work: the recording in equal parts, each written down without timestamps. Then each writes one token of the first 30
seconds: the time to the first token. Prints JSON.

    python benchmarks/speech.py CHECKPOINT [--recording FILE] [--peer PYTHON FOLDER] [--genai] [--repeat 3]
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine

from qeff_zoo import build

_RATE = 16_000  # samples a second
_PACKAGES = ("qeff-zoo", "onnxruntime")
_MOST = 1.1
_RECORDING = Path(__file__).parents[1] / "examples" / "speech.wav"
_COPIES, _PAUSE = 4, 1.0  # of the recording, and seconds between
_PEER = """
import sys, time, json
import numpy as np
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[1], device="cpu", compute_type=sys.argv[2], cpu_threads=1)
for line in sys.stdin:
    path, most = line.split()
    samples = np.load(path)
    cpu, wall, texts = time.process_time(), time.perf_counter(), []
    one = {"max_new_tokens": 1, "without_timestamps": True} if int(most) else {}
    found, _ = model.transcribe(
        samples, language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False,
        compression_ratio_threshold=None, log_prob_threshold=None, no_speech_threshold=None, **one,
    )
    for segment in found:  # which is when it is computed
        texts.append(segment.text.strip())
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "text": " ".join(texts)}))
    sys.stdout.flush()
"""
_GENAI = """
import sys, time, json, io, wave
import numpy as np
import onnxruntime_genai as genai
threads = {"session_options": {"intra_op_num_threads": 1}}
config = genai.Config(sys.argv[1])
config.overlay(json.dumps({"model": {"encoder": threads, "decoder": threads}}))
model = genai.Model(config)
processor = model.create_multimodal_processor()
for line in sys.stdin:
    path, most = line.split()
    samples = np.load(path)
    cpu, wall, texts = time.process_time(), time.perf_counter(), []
    for part in np.array_split(samples, 1 if int(most) else int(sys.argv[2])):
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16000)
            out.writeframes((part * 32767).astype(np.int16).tobytes())
        audio = genai.Audios.open_bytes(file.getvalue())
        inputs = processor(["<|startoftranscript|>"], audios=audio)
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, num_beams=1, max_length=448, batch_size=1)
        generator = genai.Generator(model, parameters)
        generator.set_inputs(inputs)
        while not generator.is_done():
            generator.generate_next_token()
            if int(most):
                break
        texts.append(processor.decode(generator.get_sequence(0)).strip())
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "text": " ".join(texts)}))
    sys.stdout.flush()
"""
_BUILDER = (
    sys.executable,
    "-m",
    "onnxruntime_genai.models.builder",
    "-m",
    "whisper",
    "-p",
    "fp32",
    "-e",
    "cpu",
)
_PAIRS = (
    ("qeff-zoo fp32", "CTranslate2 float32"),
    ("qeff-zoo int8", "CTranslate2 int8"),
    ("qeff-zoo w8a8", "CTranslate2 int8"),  # whose integers have a scale for each row, too
    ("qeff-zoo fp32, in parts", "onnxruntime-genai float32"),
)
_LONGEST = 30  # seconds that onnxruntime-genai reads


def main() -> None:
    """Measure what was asked for and print the figures."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--recording", type=Path, default=_RECORDING)
    parser.add_argument("--peer", nargs=2, metavar=("PYTHON", "FOLDER"))
    parser.add_argument("--genai", action="store_true", help="onnxruntime-genai too")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="turns of each")
    arguments = parser.parse_args()
    facts = machine(_PACKAGES)
    with tempfile.TemporaryDirectory() as name:
        recording = Path(name, "recording.npy")
        seconds = write(arguments.recording, recording)
        beginning = Path(name, "beginning.npy")
        np.save(beginning, np.load(recording)[: _LONGEST * _RATE])
        packages = {
            weights: str(build(arguments.checkpoint, weights=weights, validate=False).path)
            for weights in ("fp32", "int8", "w8a8")
        }
        ours = [sys.executable, __file__, "serve"]
        processes = {
            f"qeff-zoo {weights}": start([*ours, path, "0"]) for weights, path in packages.items()
        }
        if arguments.peer:
            python, folder = arguments.peer
            for kind in ("float32", "int8"):
                command = [python, "-c", _PEER, folder, kind]
                processes[f"CTranslate2 {kind}"] = start(command)
        if arguments.genai:
            folder, parts = str(Path(name, "genai")), str(math.ceil(seconds / _LONGEST))
            command = [*_BUILDER, "-i", arguments.checkpoint, "-o", folder]
            subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            processes["qeff-zoo fp32, in parts"] = start([*ours, packages["fp32"], parts])
            processes["onnxruntime-genai float32"] = start(
                [sys.executable, "-c", _GENAI, folder, parts]
            )
        turns, firsts = (
            [
                {who: ask(process, file, most) for who, process in processes.items()}
                for _ in range(arguments.repeat + 1)
            ][1:]
            for file, most in ((recording, 0), (beginning, 1))
        )
    answer = {
        "machine": facts, "seconds of audio": round(seconds, 1), **judged(turns, seconds),
        "first token": judged(firsts, _LONGEST),
    }  # fmt: skip
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


def write(source: Path, target: Path) -> float:
    """Write several copies of a recording as an array; return how many seconds it has."""
    from qeff_zoo.media.audio import read_audio

    one = np.concatenate([read_audio(source, _RATE), np.zeros(int(_PAUSE * _RATE), np.float32)])
    np.save(target, np.tile(one, _COPIES))
    return _COPIES * len(one) / _RATE


def serve(package: str, parts: int) -> None:
    """Write down each recording that is named on stdin; answer by what it took, in seconds, and the text.

    Args:
        package: A path.
        parts: In how many equal parts, without timestamps; 0 for all of it, with them.
    """
    from qeff_zoo import load

    session: Any = load(package, threads=1)
    for line in sys.stdin:
        path, most = line.split()
        given = np.array_split(np.load(path), 1 if int(most) else parts or 1)
        choices: dict[str, Any] = {"generation_len": 1} if int(most) else {"timestamps": not parts}
        cpu, wall = time.process_time(), time.perf_counter()
        found = session.transcribe(given, **choices)
        took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        text = " ".join(one.text for one in found)
        sys.stdout.write(json.dumps({**took, "text": text}) + "\n")
        sys.stdout.flush()


def start(command: list[str]) -> "subprocess.Popen[str]":
    """Start a process that answers lines, on one thread: those of numpy's products would wait for work in vain."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(process: "subprocess.Popen[str]", recording: Path, most: int) -> dict[str, Any]:
    """Let a process write down a recording, or so many tokens of its first window."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{recording} {most}\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def judged(turns: list[dict[str, dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Return medians, ratios of one turn each, and whether the claim holds."""
    medians = {
        who: {
            "cpu s": round(statistics.median(turn[who]["cpu"] for turn in turns), 3),
            "of the recording's length": round(
                statistics.median(turn[who]["cpu"] for turn in turns) / seconds, 4
            ),
        }
        for who in turns[0]
    }
    found: dict[str, Any] = {"median": medians}
    for ours, theirs in (pair for pair in _PAIRS if turns[0].keys() >= set(pair)):
        ratio = round(statistics.median(t[ours]["cpu"] / t[theirs]["cpu"] for t in turns), 3)
        most = _MOST if theirs.startswith("CTranslate2") else 1.0
        found.setdefault("ratio", {})[f"{ours} to {theirs}"] = {
            "value": ratio,
            "at_most": most,
            "holds": ratio <= most,
            "same text": turns[0][ours]["text"] == turns[0][theirs]["text"],
        }
    found["text"] = {who: turns[0][who]["text"] for who in turns[0]}
    return found


if __name__ == "__main__":
    main()
