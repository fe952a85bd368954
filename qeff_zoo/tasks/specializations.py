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
    """Prefill, then decode; each once for every compute context."""
    slots = shape.full_batch_size
    common = {"ctx_len": shape.ctx_len, **({"full_batch_size": slots} if slots else {})}
    prefill = {
        "batch_size": 1 if slots else shape.batch_size,
        "seq_len": shape.prefill_seq_len,
        **common,
    }
    decode = {"batch_size": slots or shape.batch_size, "seq_len": 1, **common}
    prefills, decodes = shape.comp_ctx_lengths_prefill, shape.comp_ctx_lengths_decode
    if prefill == decode:  # one program, which prefills too
        return _named("Decode", _seeing(decode, tuple(sorted({*prefills, *decodes}))))
    return _named("Prefill", _seeing(prefill, prefills)) + _named(
        "Decode", _seeing(decode, decodes)
    )


def _seeing(symbols: dict[str, int], lengths: tuple[int, ...]) -> list[dict[str, int]]:
    return [{**symbols, "comp_ctx_lengths": length} for length in lengths] or [symbols]


def _encoder(name: str, shape: Shape) -> list[dict[str, Any]]:
    """One for each sequence length."""
    every = [{"batch_size": shape.batch_size, "seq_len": seq_len} for seq_len in shape.seq_lens]
    return _named(name, every)


def _named(name: str, every: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Name specializations of one kind, and number them where there are several."""
    return [
        {
            "name": name if len(every) == 1 else f"{name}_{number}",
            "symbols": {key: str(value) for key, value in symbols.items()},
        }
        for number, symbols in enumerate(every)
    ]
