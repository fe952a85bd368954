# SPDX-License-Identifier: Apache-2.0
"""What `--weights` costs a float model: mean KL and perplexity of packages, and their decode steps, in turns.

    python benchmarks/rounding.py float FILE.gguf FOLDER       # a float model of a file that is already rounded
    python benchmarks/rounding.py judge FOLDER PACKAGE… [--tokens 512] [-o FILE.json]
    python benchmarks/rounding.py compare FOLDER PACKAGE… [--ggml PYTHON] [--tokens 4096] [-o FILE.json]

No float original is needed: values of a GGUF file are dequantized and spread evenly over the width of their steps, so
that no rounding finds the steps of the file again. transformers in float32 is the reference, Python's documentation the
text. Packages come from `qeff-zoo build FOLDER --weights … --no-validate -o PACKAGE`, from any version. Each takes one
decode step after the other, in one thread, so that what else the machine does slows all alike.

`compare` leaves out what kernels round at run time: transformers' model in float32 gets the weights of each package,
and those of llama.cpp's formats, which the C code of `--ggml` (see `quantize.py`) makes without an importance matrix.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from quantize import MIXES, by_ggml
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from qeff_zoo.graph.external_data import WEIGHTS
from qeff_zoo.package import Package
from qeff_zoo.sessions import open_session
from qeff_zoo.validation.content.stored_weights import request_of
from qeff_zoo.validation.ladder import rounding_of
from qeff_zoo.validation.perplexity import Scoring, predictions
from qeff_zoo.validation.reference.numerics import Preparation, round_weights

_BLOCK, _STEPS = 32, 16  # columns and values of a block of Q4_1
_WINDOW = 512


def make_float(file: Path, folder: Path) -> None:
    """Write a checkpoint in bfloat16 with the values of a GGUF file of Q4_0, Q4_1 and Q8_0, dithered."""
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            noise = torch.rand(parameter.shape, generator=random) - 0.5
            parameter.data += noise * _widths(parameter.data)
    folder.mkdir(parents=True)
    values = {name: tensor.data.bfloat16() for name, tensor in model.named_parameters()}
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "dtype": "bfloat16"}
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def _widths(matrix: torch.Tensor) -> torch.Tensor:
    """Return the steps between the values of each block, in the shape of a matrix."""
    blocks = matrix.unflatten(1, (-1, _BLOCK)).sort(-1).values
    steps = blocks.diff(dim=-1)
    least = blocks.abs().amax(-1, keepdim=True) * 1e-4  # what is less is rounding
    if int((steps > least).sum(-1).max()) < _STEPS:
        width = torch.where(steps > least, steps, torch.inf).amin(-1, keepdim=True)
        width = torch.where(width.isinf(), 0.0, width)
    else:  # Q8_0
        width = blocks.abs().amax(-1, keepdim=True) / 127
    return width.expand_as(blocks).flatten(1)


def judge(folder: Path, packages: list[Path], count: int) -> dict[str, Any]:
    """Compare packages with the float model.

    Args:
        folder: Checkpoint of the float model.
        packages: Folders of packages.
        count: Number of tokens.
    """
    tokens = _tokens(folder, count)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()
    del model
    scoring = Scoring(tokens=tokens, window=count, stride=count)
    running = {path.name: _steps(path, scoring) for path in packages}
    found: dict[str, dict[str, list[float]]] = {
        name: {"kl": [], "loss": [], "seconds": []} for name in running
    }
    for _ in tokens[1:]:
        for name, steps in running.items():
            begun = time.perf_counter()
            target, logits = next(steps)
            found[name]["seconds"].append(time.perf_counter() - begun)
            right, given = expected[target - 1], _log_softmax(logits)
            found[name]["kl"].append(float((np.exp(right) * (right - given)).sum()))
            found[name]["loss"].append(-float(given[tokens[target]]))
    losses = [-expected[at, token] for at, token in enumerate(tokens[1:])]
    return {
        "tokens": count,
        "perplexity": math.exp(statistics.fmean(losses)),
        "packages": {path.name: _summary(found[path.name], path) for path in packages},
    }


def _tokens(folder: Path, count: int) -> list[int]:
    text = "\n\n".join(topics[name] for name in sorted(topics))
    found: list[int] = AutoTokenizer.from_pretrained(folder)(text)["input_ids"][:count]
    return found


def compare(folder: Path, packages: list[Path], ggml: str | None, count: int) -> dict[str, Any]:
    """Compare the weights of packages, and those of llama.cpp's formats, with a float model's.

    Args:
        folder: Checkpoint of the float model.
        packages: Folders of packages.
        ggml: Python with `gguf` and `libggml-python`; None for no formats of llama.cpp.
        count: Number of tokens, in windows of 512.
    """
    torch.set_grad_enabled(False)
    windows = torch.tensor(_tokens(folder, count)).split(_WINDOW)

    def loaded() -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def answers(model: Any) -> list[Tensor]:
        return [
            model(window[None], use_cache=False).logits[0].log_softmax(-1) for window in windows
        ]

    def row(bits: float, found: list[Tensor]) -> dict[str, float]:
        pairs = zip(expected, found, strict=True)
        kl = torch.cat([(right.exp() * (right - given)).sum(-1) for right, given in pairs]).double()
        losses = [
            -one[:-1].gather(1, ids[1:, None]) for one, ids in zip(found, windows, strict=True)
        ]
        return {
            "bits": bits,
            "kl": float(kl.mean()),
            "kl_error": float(kl.std()) / math.sqrt(len(kl)),
            "perplexity": math.exp(float(torch.cat(losses).mean())),
        }

    model = loaded()
    plain = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights = sum(value.numel() for value in plain.values() if value.ndim == 2)
    expected = answers(model)
    rows = {"float": row(16, expected)}
    for path in packages:
        package, model = Package.open(path), loaded()
        round_weights(
            model, rounding_of(package).matrices, preparation=Preparation.of(request_of(package))
        )
        bits = 8 * (path / WEIGHTS).stat().st_size / weights
        rows[path.name] = row(bits, answers(model))
    layers = model.config.num_hidden_layers
    for mix in MIXES if ggml else ():
        bits, values = by_ggml(str(ggml), mix, plain, layers)
        model.load_state_dict(values, strict=False, assign=True)
        model.tie_weights()
        rows[f"llama.cpp {mix}"] = row(bits, answers(model))
    return {"tokens": sum(map(len, windows)), "rows": rows}


def _steps(path: Path, scoring: Scoring) -> Iterator[tuple[int, Any]]:
    session: Any = open_session(Package.open(path), threads=1)
    yield from predictions(scoring, session.decoder, lambda _: None)


def _log_softmax(logits: Any) -> Any:
    wide = np.asarray(logits, np.float64).reshape(-1)
    wide -= wide.max()
    return wide - math.log(np.exp(wide).sum())


def _summary(found: dict[str, list[float]], path: Path) -> dict[str, float]:
    kl = found["kl"]
    matrices = (path / "weights.safetensors").stat().st_size
    return {
        "kl": statistics.fmean(kl),
        "kl_error": statistics.stdev(kl) / math.sqrt(len(kl)),
        "perplexity": math.exp(statistics.fmean(found["loss"])),
        "decode_ms": 1e3 * statistics.median(found["seconds"][1:]),
        "bytes": matrices,
    }


def main() -> None:
    """Make a model, or judge or compare packages of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("float")
    making.add_argument("file", type=Path)
    making.add_argument("folder", type=Path)
    for name, tokens in {"judge": 512, "compare": 4096}.items():
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("packages", type=Path, nargs="+")
        command.add_argument("--tokens", type=int, default=tokens)
        command.add_argument("-o", "--output", type=Path)
        if name == "compare":
            command.add_argument("--ggml", metavar="PYTHON", help="has gguf and libggml-python")
    arguments = parser.parse_args()
    if arguments.command == "float":
        make_float(arguments.file, arguments.folder)
        return
    if arguments.command == "judge":
        found = judge(arguments.folder, arguments.packages, arguments.tokens)
    else:
        found = compare(arguments.folder, arguments.packages, arguments.ggml, arguments.tokens)
    answer = json.dumps(found, indent=2)
    if arguments.output:
        arguments.output.write_text(f"{answer}\n", encoding="utf-8")
    print(answer)


if __name__ == "__main__":
    main()
