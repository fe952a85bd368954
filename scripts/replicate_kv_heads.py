#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint with each key/value head so many times, for other tools; `qeff-zoo build --kv-heads` needs none.

    python scripts/replicate_kv_heads.py MODEL --repeat 2 [-o DIR]
    python scripts/replicate_kv_heads.py --model_name MODEL --repeat 2 --prompt "My name is" [--full_batch_size 4]

Writes config.json with another `num_key_value_heads`, the small files, and the weights in one file, piece by piece, in
the types that they have. Quantized weights (FP8, AWQ, GPTQ, AutoRound, compressed-tensors) are not dequantized: their
integers and scales are repeated as they are stored. DIR is new or empty, MODEL-<n>kvheads by default, and appears whole
or not at all.
With --prompt, as with QEfficient's script, packages of both checkpoints are built, and the first ten tokens of their
answers are shown; they are the same.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import qeff_zoo
from qeff_zoo import contract, registry
from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.expressions import blocks, rows, shape_of, sources_of
from qeff_zoo.checkpoint.formats.rows import Repeated, repeated
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.safetensors_index import DTYPE_BITS
from qeff_zoo.errors import PlanError, UnsupportedModelError, ZooError
from qeff_zoo.export import companions, loader
from qeff_zoo.qefficient.cloud import flags
from qeff_zoo.store import Store
from qeff_zoo.store.copies import new_folder
from qeff_zoo.weights import bindings, kv_heads

_PIECE = 1 << 22  # elements that are read at once
_CONTEXT = 128  # tokens of the packages that --prompt builds
_SHOWN = 10  # tokens of the answers that it shows


def main() -> int:
    """Write the checkpoint and print its path."""
    parser = _parser()
    arguments = parser.parse_args()
    model = arguments.model or arguments.model_name
    if model is None:
        parser.error("expected MODEL or --model_name")
    try:
        written = replicate(model, arguments.repeat, arguments.output)
        print(written)
        if arguments.prompt is not None:
            slots = arguments.full_batch_size
            return int(not _same_answers(model, str(written), arguments.prompt, slots))
    except ZooError as error:
        print(f"replicate_kv_heads: {error}", file=sys.stderr)
        return 1
    return 0


def replicate(model: str, repeat: int, output: Path | None = None) -> Path:
    """Write a checkpoint whose key/value heads are repeated.

    Args:
        model: Hub id or folder.
        repeat: How often each head will be there.
        output: A folder that is absent or empty; None for `<name>-<n>kvheads` in the current one.

    Raises:
        ZooError: Its heads cannot be repeated so often, or the folder cannot be written.
    """
    checkpoint = open_checkpoint(model)
    heads = (checkpoint.config.get(kv_heads.KV_HEADS) or 0) * repeat
    output = output or Path(f"{checkpoint.name.rpartition('/')[2]}-{heads}kvheads")
    recipe = registry.find_recipe(checkpoint.model_type)
    if found := [*kv_heads.problems(checkpoint.name, checkpoint.config, recipe, heads)]:
        raise PlanError(found)
    if checkpoint.gguf:
        raise UnsupportedModelError(
            f"{checkpoint.name!r} is GGUF; expected safetensors. Use `qeff-zoo build --kv-heads {heads}`."
        )
    config = kv_heads.widened(checkpoint.config, heads)
    checkpoint.fetch()
    values = _values(
        checkpoint, config, contract.task_of([*checkpoint.architectures, ""][0], recipe)
    )
    with new_folder(output) as folder:
        companions.copy(checkpoint, folder)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _write(folder / "model.safetensors", checkpoint, values)
    return output


def _same_answers(before: str, after: str, prompt: str, slots: int | None) -> bool:
    """Build packages of two checkpoints, show how both begin to answer, and report whether that is the same."""
    answers: list[list[int]] = []
    for name, model in (("before", before), ("after", after)):
        package = qeff_zoo.build(model, ctx_len=_CONTEXT, full_batch_size=slots)
        session: Any = qeff_zoo.load(package)
        (answer,) = session.generate(prompt, generation_len=_SHOWN)
        answers.append(answer.token_ids)
        print(f"{name}: {answer.token_ids} {answer.text!r}, package {str(package.path)!r}")
    return answers[0] == answers[1]


def _values(checkpoint: Checkpoint, config: Mapping[str, Any], task: str) -> dict[str, Repeated]:
    """Return the expression, or the content, of each stored tensor of the new checkpoint."""
    own, wide = (loader.build_meta(one, task) for one in (checkpoint.config, config))
    bound = bindings.bind(own, checkpoint.tensors)
    heads = checkpoint.config[kv_heads.KV_HEADS]
    times = config[kv_heads.KV_HEADS] // heads
    values: dict[str, Repeated] = {name: name for name in checkpoint.stored}
    for name, value in kv_heads.repeat(bound, own, wide).expressions.items():
        stored = bound.expressions[name]
        if value == stored:
            continue
        if not isinstance(stored, str):
            raise UnsupportedModelError(
                f"{checkpoint.name!r} stores {name!r} in parts of {sources_of(stored)[0]!r}; expected a tensor of its "
                "own. Use `qeff-zoo build --kv-heads`."
            )
        if encoded := checkpoint.encoded.get(stored):
            axes = formats.rows_of(checkpoint.quantization)
            values |= repeated(encoded, checkpoint.stored, axes, heads, times)
        else:
            values[stored] = value
    return values


def _write(path: Path, checkpoint: Checkpoint, values: Mapping[str, Repeated]) -> None:
    """Write a safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in values.items():
        dtype = checkpoint.stored[name].dtype
        stored = checkpoint.stored
        shape = value.shape if isinstance(value, np.ndarray) else shape_of(value, stored)
        start, end = end, end + math.prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    Store.require_space(path.parent, end, "the weights")
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for piece in _pieces(checkpoint, values):
            file.write(piece)


def _pieces(checkpoint: Checkpoint, values: Mapping[str, Repeated]) -> Iterator[bytes]:
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            yield value.tobytes()
            continue
        for part, start, stop in blocks(value, checkpoint.stored, _PIECE):
            yield rows(part, checkpoint.read_stored, checkpoint.stored, start, stop).tobytes()
        checkpoint.release(name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="Hub id or folder of a checkpoint")
    flags.add(parser, "model_name", metavar="MODEL", help="as MODEL")
    add("--repeat", type=int, required=True, metavar="N", help="how often each head will be there")
    add("-o", "--output", type=Path, metavar="DIR", help="default: MODEL-<n>kvheads")
    add("--prompt", metavar="TEXT", help="build both checkpoints, and show how they answer this")
    text = "build them with that many slots of continuous batching"
    flags.add(parser, "full_batch_size", type=int, metavar="N", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
