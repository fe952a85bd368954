# SPDX-License-Identifier: Apache-2.0
"""Claim: a quantized checkpoint of 70 B parameters is built in 1.5 GB, and in no more CPU time than one of floats.

Makes checkpoints of a Llama of 70 B parameters that are headers alone, in bfloat16, as AWQ and as GGUF of Q4_K_M: the
rest of their files are holes, which read as zeros. Each is built, the floats to int4, in a process of its own by the
whole pipeline, but for two steps. Checkpoints are not hashed; and of the weights those outside of layers and those of
the first layer are written, while the package's file is else a hole too. Prints JSON.

    python benchmarks/quantized_large.py > benchmarks/results/quantized_large.json
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from build import CpuPerStage
from gguf_llama import renamed, write_config
from measuring import machine, measure
from random_llama import SIZES, config_of, shapes_of, write_tokenizer

_PACKAGES = ("qeff-zoo", "onnxruntime", "torch", "transformers", "numpy")
_GROUP = 128
_MOST_BYTES = 1.5e9
_DTYPES = {"BF16": 2, "F16": 2, "I32": 4}


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="70b")
    parser.add_argument("--do", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        json.dump(perform(*arguments.do), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as made:
        found = compare(Path(made), arguments.size)
    answer = {"machine": machine(_PACKAGES), "size": arguments.size, **found}
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


def compare(work: Path, size: str) -> dict[str, Any]:
    """Build every checkpoint, the floats first, whose graph the others then share."""
    floats, awq = work / "floats", work / "awq"
    config = config_of(SIZES[size])
    _write(floats, config, dict(_floats(size)))
    method = {"quant_method": "awq", "bits": 4, "group_size": _GROUP, "version": "gemm"}
    _write(awq, {**config, "quantization_config": method}, dict(_awq(size)))
    file = _write_gguf(work / "q4_k_m.gguf", config, size)
    cases = {
        "int4 of floats, not traced before": (floats, "int4"),
        "int4 of floats": (floats, "int4"),
        "awq": (awq, "stored"),
        "q4_k_m": (file, "stored"),
    }
    environment = {**os.environ, "QEFF_HOME": str(work / "store")}
    found: dict[str, Any] = {}
    for name, (model, weights) in cases.items():
        command = [sys.executable, __file__, "--do", str(model), weights]
        taken = measure(command, environment)
        shutil.rmtree(work / "store" / "packages")
        found[name] = {
            **taken.answer,
            "cpu_seconds": taken.cpu_seconds,
            "peak_anonymous_bytes": taken.peak_anonymous_bytes,
        }
    others = [value for name, value in found.items() if "floats" not in name]
    floats_cpu = found["int4 of floats"]["cpu_seconds"]
    return {
        "cases": found,
        "limits": {
            "peak_anonymous_bytes": {
                "at_most": _MOST_BYTES,
                "within": all(
                    value["peak_anonymous_bytes"] <= _MOST_BYTES for value in found.values()
                ),
            },
            "cpu_seconds": {
                "at_most": floats_cpu,
                "within": all(other["cpu_seconds"] <= floats_cpu for other in others),
            },
        },
    }


def perform(model: str, weights: str) -> dict[str, Any]:
    """Build in this process, reading and writing a part of the weights."""
    from qeff_zoo import pipeline
    from qeff_zoo.plan.request import Request
    from qeff_zoo.store import Store
    from qeff_zoo.weights import writing

    whole = writing.write

    def write(layout: Any, source: Any, path: Path, progress: Any = None) -> writing.Written:
        some = [
            slot
            for name, slot in layout.slots.items()
            if ".layers." not in name or ".layers.0." in name
        ]
        part = path.with_name("part")
        written = whole(writing.plan_file(some, source.tensors), source, part, progress)
        part.unlink()
        with path.open("xb") as file:
            file.write(layout.header)
            file.truncate(layout.nbytes)
        return writing.Written(written.sha256, layout.nbytes, written.seconds)

    setattr(writing, "write", write)  # noqa: B010
    setattr(Store, "file_digest", lambda *_: "0" * 64)  # noqa: B010
    setattr(Store, "require_space", lambda *_: None)  # noqa: B010
    stages = CpuPerStage()
    original = str(Path(model).with_name("floats")) if model.endswith(".gguf") else None
    request = Request(weights=weights, ctx_len=512, prefill_seq_len=128)
    built = pipeline.build(model, request, validate=False, reporter=stages, config_from=original)
    return {"cpu_seconds_by_stage": stages.seconds, "package_bytes": built.package.size}


# --- headers --------------------------------------------------------------------------------------


def _floats(size: str) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for name, shape in shapes_of(SIZES[size]):
        yield name, ("BF16", shape)


def _awq(size: str) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for name, shape in shapes_of(SIZES[size]):
        if ".layers." not in name or len(shape) == 1:
            yield name, ("BF16", shape)
            continue
        rows, columns = shape
        module = name.removesuffix(".weight")
        yield f"{module}.qweight", ("I32", (columns, rows // 8))
        yield f"{module}.qzeros", ("I32", (columns // _GROUP, rows // 8))
        yield f"{module}.scales", ("F16", (columns // _GROUP, rows))


def _write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    """Write a checkpoint of safetensors whose tensors are holes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + _DTYPES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _write_gguf(path: Path, config: Mapping[str, Any], size: str) -> Path:
    """Write a GGUF file as llama.cpp mixes types for Q4_K_M, whose tensors are holes."""
    import gguf

    kinds, writer = gguf.GGMLQuantizationType, gguf.GGUFWriter(path, "llama")
    write_config(writer, config)
    nbytes = 0
    for name, shape in shapes_of(SIZES[size]):
        kind = _kind_of(name, shape, config["num_hidden_layers"])
        values, octets = gguf.GGML_QUANT_SIZES[kinds[kind]]
        row = (*shape[:-1], shape[-1] // values * octets)
        dtype: Any = np.dtype(np.float32) if kind == "F32" else np.dtype(np.uint8)
        given = shape if kind == "F32" else row
        writer.add_tensor_info(renamed(name), given, dtype, math.prod(row), kinds[kind])
        nbytes += -(-math.prod(row) // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + nbytes)
    return path


def _kind_of(name: str, shape: tuple[int, ...], layers: int) -> str:
    if len(shape) == 1:
        return "F32"
    number = int(name.split(".")[2]) if ".layers." in name else 0
    eighth = layers // 8
    more = number < eighth or number >= layers - eighth or (number - eighth) % 3 == 2
    last = name.endswith(("v_proj.weight", "down_proj.weight")) and more
    return "Q6_K" if last or name == "lm_head.weight" else "Q4_K"


if __name__ == "__main__":
    main()
