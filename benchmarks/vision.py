# SPDX-License-Identifier: Apache-2.0
"""Claims: in w8a8 images are encoded and prompts run 1.5 times as fast as by transformers; export hardly grows.

Makes a LLaVA of random weights once: SigLIP base at 384 pixels and Qwen2 0.5 B. Builds it in each storage, opens the
packages and transformers' model in float32 in one process, and lets them take turns at the same image and prompt.
Judged is CPU time on one thread; ONNX Runtime's profile says how much of it products of matrices take, which bounds
what else could be won. The shapes of Qwen2.5-VL are exported from their configs, each in a process that is
measured from outside. Prints JSON.

    python benchmarks/vision.py [--cases export speed products] [--weights w8a8 int8] [--repeat 5] [--cache DIR]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from measuring import machine, measure
from random_models import build, save

PACKAGES = ("qeff-zoo", "torch", "transformers", "onnxruntime")
_LEAST = 1.5
_EXPORT = {"cpu_seconds": 40, "peak_rss_bytes": 1.5e9}
_DEPTH_RATIO = 1.3  # of 72 B to 7 B
SIDE, TEXT = 384, 64  # pixels; tokens beside the image's
_PLACEHOLDER = 151_655
_QWEN = {
    "7b": {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4},
    "72b": {"hidden_size": 8192, "intermediate_size": 29_568, "num_hidden_layers": 80}
    | {"num_attention_heads": 64, "num_key_value_heads": 8},
}


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cases: dict[str, Callable[[argparse.Namespace], Any]] = {
        "export": export,  # first: a process counts what the one that started it held as its own peak
        "speed": speed,
        "products": products,
    }
    parser.add_argument("--cases", nargs="+", choices=[*cases], default=[*cases])
    parser.add_argument("--weights", nargs="+", default=["w8a8", "int8", "fp32", "int4"])
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns of each")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    parser.add_argument("--do", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        from qeff_zoo import pipeline

        pipeline.export(arguments.do[0], Path(arguments.do[1]), graph_only=True)
        return
    facts = machine(PACKAGES)
    found = {name: cases[name](arguments) for name in arguments.cases}
    json.dump({"machine": facts, **found}, sys.stdout, indent=1)
    sys.stdout.write("\n")


# --- speed ---------------------------------------------------------------------------------------


def make() -> Any:
    """Return the model."""
    from transformers import (
        LlavaConfig,
        LlavaForConditionalGeneration,
        Qwen2Config,
        SiglipVisionConfig,
    )

    text = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151_936,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    vision = SiglipVisionConfig(image_size=SIDE, patch_size=16, vision_use_head=False)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=_PLACEHOLDER,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(config)


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let packages and transformers take turns."""
    import numpy as np
    import torch
    from transformers import AutoModelForImageTextToText

    from qeff_zoo import load

    folder = save(arguments.cache / "llava-0.5b", make)
    environment = {**os.environ, "QEFF_HOME": str(arguments.cache / "vision-store")}
    sessions: dict[str, Any] = {
        f"qeff-zoo {weight}": load(
            build(folder, environment, weights=weight, ctx_len=1024), threads=1
        )
        for weight in arguments.weights
    }
    torch.set_num_threads(1)
    models = {
        f"transformers {how}": AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=how
        )
        for how in ("eager", "sdpa")
    }
    random = np.random.default_rng(0)
    turns = []
    for _ in range(arguments.repeat + 1):
        pixels = random.standard_normal((1, 3, SIDE, SIDE), np.float32)
        text = random.integers(0, 100_000, TEXT).tolist()
        turn = {name: ours(session, pixels, text) for name, session in sessions.items()}
        turns.append(turn | {name: _theirs(model, pixels, text) for name, model in models.items()})
        print(json.dumps(turns[-1]), file=sys.stderr)
    return _judged(turns[1:])


def ours(session: Any, pixels: Any, text: list[int]) -> dict[str, float]:
    """Encode an image and run it and a text by a package; return CPU seconds and the first token."""
    session.reader.forget()
    begun = time.process_time()
    request = session.request(
        [_PLACEHOLDER, *text], images=[{"pixel_values": pixels}], generation_len=1
    )
    encoded = time.process_time()
    (answer,) = session.generate([request])
    ended = time.process_time()
    return {"encode": encoded - begun, "prefill": ended - encoded, "token": answer.token_ids[0]}


def _theirs(model: Any, pixels: Any, text: list[int]) -> dict[str, float]:
    import torch

    with torch.no_grad():
        begun = time.process_time()
        (features,) = model.get_image_features(torch.from_numpy(pixels)).pooler_output
        encoded = time.process_time()
        ids = torch.tensor([[_PLACEHOLDER] * len(features) + text])
        embeds = model.get_input_embeddings()(ids)
        embeds[0, : len(features)] = features
        logits = model(inputs_embeds=embeds, use_cache=True, logits_to_keep=1).logits
        ended = time.process_time()
    token = int(logits[0, -1].argmax())
    return {"encode": encoded - begun, "prefill": ended - encoded, "token": token}


def _judged(turns: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return medians of CPU seconds, and of ratios within a turn."""
    names = [name for name in turns[0] if name.startswith("qeff-zoo")]
    whole: dict[str, Any] = {"tokens": {"image": (SIDE // 16) ** 2, "text": TEXT}}
    whole["cpu seconds"] = {
        name: {
            part: round(statistics.median(turn[name][part] for turn in turns), 3)
            for part in ("encode", "prefill")
        }
        for name in turns[0]
    }
    for peer in ("transformers eager", "transformers sdpa"):
        whole[f"times as fast as {peer}"] = {
            name: {
                part: round(
                    statistics.median(turn[peer][part] / turn[name][part] for turn in turns), 3
                )
                for part in ("encode", "prefill")
            }
            for name in names
        }
    right = [turn["transformers eager"]["token"] for turn in turns]
    whole["same token"] = {
        name: sum(turn[name]["token"] == token for turn, token in zip(turns, right, strict=True))
        for name in names
    }
    eager = whole["times as fast as transformers eager"]
    whole["at least"] = _LEAST
    whole["holds"] = {name: min(eager[name].values()) >= _LEAST for name in names}
    return whole


# --- products ------------------------------------------------------------------------------------


def products(arguments: argparse.Namespace) -> dict[str, Any]:
    """Say what part of a package's time products of matrices take, of weights and in attention."""
    import numpy as np
    import onnxruntime

    from qeff_zoo import load

    folder = save(arguments.cache / "llava-0.5b", make)
    environment = {**os.environ, "QEFF_HOME": str(arguments.cache / "vision-store")}
    random, found = np.random.default_rng(0), {}
    start, opened = onnxruntime.InferenceSession, []

    def profiled(path: Any, options: Any, **others: Any) -> Any:
        options.enable_profiling = True
        options.profile_file_prefix = str(arguments.cache / "profile")
        opened.append(start(path, options, **others))
        return opened[-1]

    for weights in arguments.weights:
        package = build(folder, environment, weights=weights, ctx_len=1024)
        with mock.patch.object(onnxruntime, "InferenceSession", profiled):
            session: Any = load(package, threads=1)
            pixels = random.standard_normal((1, 3, SIDE, SIDE), np.float32)
            ours(session, pixels, random.integers(0, 100_000, TEXT).tolist())
        found[f"qeff-zoo {weights}"] = [_shares(Path(one.end_profiling())) for one in opened]
        opened.clear()
    return found


def _shares(profile: Path) -> dict[str, float]:
    """Return the operators that take most of a program's time, and their part of it."""
    taken: Counter[str] = Counter()
    for event in json.loads(profile.read_bytes()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["args"]["op_name"]] += event["dur"]
    profile.unlink()
    return {name: round(time / taken.total(), 3) for name, time in taken.most_common(6)}


# --- export --------------------------------------------------------------------------------------


def _config(size: str) -> dict[str, Any]:
    """Return Qwen2.5-VL's config of a size."""
    text = {"model_type": "qwen2_5_vl_text", **_QWEN[size], "vocab_size": 152_064}
    text |= {"max_position_embeddings": 128_000, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
    text |= {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    vision: dict[str, Any] = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
    }
    vision |= {"out_hidden_size": _QWEN[size]["hidden_size"], "patch_size": 14, "window_size": 112}
    vision |= {"fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu"}
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 151_655,
        "video_token_id": 151_656,
        "vision_start_token_id": 151_652,
        "vision_end_token_id": 151_653,
        "tie_word_embeddings": False,
    }


def export(arguments: argparse.Namespace) -> dict[str, Any]:
    """Export both programs of each size from its config alone."""
    found: dict[str, Any] = {}
    for size in _QWEN:
        runs = [_export(size) for _ in range(min(arguments.repeat, 3))]
        best: Mapping[str, Any] = min(runs, key=lambda run: run["cpu_seconds"])
        limits = {
            name: {"limit": most, "within": best[name] <= most} for name, most in _EXPORT.items()
        }
        found[f"Qwen2.5-VL {size}"] = {**best, "limits": limits}
    small, large = found.values()
    ratios = {name: round(large[name] / small[name], 3) for name in _EXPORT}
    judged = {
        name: {"ratio": ratio, "within": ratio <= _DEPTH_RATIO} for name, ratio in ratios.items()
    }
    return {**found, "72b to 7b": judged}


def _export(size: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, f"qwen2.5-vl-{size}")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(_config(size)))
        command = [sys.executable, "-W", "ignore", __file__, "--do", str(folder / "config.json")]
        environment = {**os.environ, "QEFF_HOME": str(Path(name, "store"))}
        taken = measure([*command, str(Path(name, "graph"))], environment)
        graphs = sorted(Path(name, "graph").rglob("*.onnx"))
        return {
            "cpu_seconds": taken.cpu_seconds,
            "wall_seconds": taken.wall_seconds,
            "peak_rss_bytes": taken.peak_rss_bytes,
            "graphs": {path.name: path.stat().st_size for path in graphs},
        }


if __name__ == "__main__":
    main()
