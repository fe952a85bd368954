# SPDX-License-Identifier: Apache-2.0
"""The defaults of a build, and the disk, memory and time that models of common sizes take, for docs/generation.md."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documentation.tables import table
from qeff_zoo import targets
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.graph.numerics import (
    BLOCK_SIZE,
    FLOAT32,
    MIXED,
    MIXED_BITS,
    STORED,
    WEIGHTS,
    format_of,
)
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.recipe import DECODER_SHAPES
from qeff_zoo.weights.layout import Slot, plan_file

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_FLOAT32 = 4  # bytes
_GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Sizes of a published Llama or Qwen2.5, as in its config.json.

    Args:
        model_id: On the Hub.
        parameters: Published number of parameters.
        hidden: Width of the hidden states.
        intermediate: Width of the MLP.
        layers: Number of layers.
        heads: Number of query heads.
        kv_heads: Number of key/value heads.
        head_dim: Width of a head.
        vocabulary: Number of tokens.
        tied: Whether the output matrix is the embedding table.
        biased: Whether queries, keys and values have a bias.
    """

    model_id: str
    parameters: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 128_256
    tied: bool = False
    biased: bool = False

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the shape of every tensor."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "embed_tokens", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
            for name, count in rows.items():
                yield f"{layer}.{name}", (count, self.hidden)
                if self.biased:
                    yield f"{layer}.{name}.bias", (count,)
            yield f"{layer}.o_proj", (self.hidden, queries)
            yield f"{layer}.gate_proj", (self.intermediate, self.hidden)
            yield f"{layer}.up_proj", (self.intermediate, self.hidden)
            yield f"{layer}.down_proj", (self.hidden, self.intermediate)
            yield from ((f"{layer}.norm.{number}", (self.hidden,)) for number in range(2))
        yield "norm", (self.hidden,)
        if not self.tied:
            yield "lm_head", (self.vocabulary, self.hidden)

    def weight_bytes(self, weights: str) -> int:
        """Return the length of a package's weight file, by the product's own layout.

        Args:
            weights: Value of `--weights`.
        """
        shapes, stored = dict(self.tensors()), format_of(weights)
        tensors = {
            name: TensorInfo(name, "BF16", shape, Path(), 0, 2 * math.prod(shape))
            for name, shape in shapes.items()
        }
        matrices = {name for name, shape in shapes.items() if len(shape) > 1}
        if weights == MIXED[0]:  # a mixture
            values = sum(math.prod(shapes[name]) for name in matrices)
            floats = [Slot(name, name, FLOAT32) for name in shapes if name not in matrices]
            return int(MIXED_BITS * values / 8) + plan_file(floats, tensors).nbytes
        slots = [Slot(name, name, stored if name in matrices else FLOAT32) for name in shapes]
        return plan_file(slots, tensors).nbytes

    def cache_bytes(self, ctx_len: int) -> int:
        """Return the bytes of keys and values of one batch slot.

        Args:
            ctx_len: Context length.
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * ctx_len * _FLOAT32


DECODERS = {
    "1 B": Decoder(
        model_id="meta-llama/Llama-3.2-1B", parameters=1_235_814_400, hidden=2048, intermediate=8192, layers=16,
        heads=32, head_dim=64, tied=True,
    ),
    "3 B": Decoder(
        model_id="meta-llama/Llama-3.2-3B", parameters=3_212_749_824, hidden=3072, intermediate=8192, layers=28,
        heads=24, tied=True,
    ),
    "8 B": Decoder(
        model_id="meta-llama/Llama-3.1-8B", parameters=8_030_261_248, hidden=4096, intermediate=14_336, layers=32,
        heads=32,
    ),
    "14 B": Decoder(
        model_id="Qwen/Qwen2.5-14B-Instruct", parameters=14_770_033_664, hidden=5120, intermediate=13_824, layers=48,
        heads=40, vocabulary=152_064, biased=True,
    ),
    "32 B": Decoder(
        model_id="Qwen/Qwen2.5-32B-Instruct", parameters=32_763_876_352, hidden=5120, intermediate=27_648, layers=64,
        heads=40, vocabulary=152_064, biased=True,
    ),
    "70 B": Decoder(
        model_id="meta-llama/Llama-3.1-70B", parameters=70_553_706_496, hidden=8192, intermediate=28_672, layers=80,
        heads=64,
    ),
}  # fmt: skip


def defaults() -> str:
    """Return the table of the defaults of a build of a decoder."""
    own = {name: targets.find(name).weights[0] for name in targets.NAMES}
    others = ", ".join(
        f"`{one}` for target `{name}`" for name, one in own.items() if one != WEIGHTS[0]
    )
    weights = f"`{WEIGHTS[0]}`; `{STORED}` for quantized checkpoints" + (
        f"; {others}" if others else ""
    )
    rows = [
        ["`--target`", f"`{OPTIONS['target'].default}`"],
        ["`--weights`", weights],
        ["`--block-size`", f"{BLOCK_SIZE}; of each matrix its own with `{MIXED[0]}`"],
        ["`--bits`", f"{MIXED_BITS:g} with `{MIXED[0]}`"],
        *(
            [f"`--profile {name}`{' (the default)' if number == 0 else ''}", _of_shape(shape)]
            for number, (name, shape) in enumerate(DECODER_SHAPES.items())
        ),
    ]
    return table(["option", "default"], rows)


def _of_shape(shape: Any) -> str:
    sizes = {
        "prefill-seq-len": shape.prefill_seq_len,
        "ctx-len": shape.ctx_len,
        "full-batch-size": shape.full_batch_size,
    }
    return ", ".join(f"`--{name} {value}`" for name, value in sizes.items() if value)


def sizes() -> str:
    """Return the table of sizes on disk and in memory, in GB."""
    ctx_len = next(iter(DECODER_SHAPES.values())).ctx_len
    rows = [
        [
            title,
            f"`{one.model_id}`",
            *(f"{one.weight_bytes(weights) / _GB:.1f}" for weights in WEIGHTS),
            f"{one.cache_bytes(ctx_len) / _GB:.2f}",
        ]
        for title, one in DECODERS.items()
    ]
    return table(
        ["model", "sizes of", *(f"`{one}`" for one in WEIGHTS), f"KV cache, {ctx_len:,} tokens"],
        rows,
    )


def measured() -> str:
    """Return the table of measured builds and runs of Llamas with random weights."""
    build, run = (_results(name)["cases"] for name in ("build", "run"))
    large = _results("quantized_large")["cases"]
    rows = []
    for weights in ("fp32", "int4"):
        case, engine = build[weights], run[f"1.2b_{weights}"]["engines"]["qeff-zoo"]
        rows.append(
            ["1.2 B", f"`{weights}`", *_of_build(case), f"{engine['peak_rss_bytes'] / _GB:.1f}"]
        )
    rows.append(
        ["70 B", "`int4`", *_of_build(large["int4 of floats, not traced before"], timed=False), ""]
    )
    return table(
        ["Llama of", "weights", "build, CPU seconds", "build, GB of memory", "run, GB of memory"],
        rows,
    )


def _of_build(case: Mapping[str, Any], *, timed: bool = True) -> list[str]:
    seconds = f"{case['cpu_seconds']:.0f}" if timed else ""
    return [seconds, f"{case['peak_anonymous_bytes'] / _GB:.1f}"]


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_bytes())
    return found
