# SPDX-License-Identifier: Apache-2.0
"""The named specializations of a package: what a task's symbols are, for each way of calling its graph."""

from typing import Any

from qeff_zoo.recipe import Shape

_NAMES = {
    "feature-extraction": "Embedding",
    "text-classification": "Classification",
    "token-classification": "Classification",
}


def specializations(task: str, shape: Shape) -> list[dict[str, Any]]:
    """Return a task's specializations, as in the manifest.

    Args:
        task: Hub pipeline tag.
        shape: Sizes of the package.
    """
    return _decoder(shape) if task == "text-generation" else _encoder(_NAMES[task], shape)


def _decoder(shape: Shape) -> list[dict[str, Any]]:
    """Prefill, then decode."""
    slots = shape.full_batch_size
    common = {"ctx_len": shape.ctx_len, **({"full_batch_size": slots} if slots else {})}
    prefill = {
        "batch_size": 1 if slots else shape.batch_size,
        "seq_len": shape.prefill_seq_len,
        **common,
    }
    decode = {"batch_size": slots or shape.batch_size, "seq_len": 1, **common}
    named = (
        [("Prefill", prefill), ("Decode", decode)] if prefill != decode else [("Decode", decode)]
    )
    return [
        {"name": name, "symbols": {key: str(value) for key, value in symbols.items()}}
        for name, symbols in named
    ]


def _encoder(name: str, shape: Shape) -> list[dict[str, Any]]:
    """One for each sequence length."""
    return [
        {
            "name": name if len(shape.seq_lens) == 1 else f"{name}_{number}",
            "symbols": {"batch_size": str(shape.batch_size), "seq_len": str(seq_len)},
        }
        for number, seq_len in enumerate(shape.seq_lens)
    ]
