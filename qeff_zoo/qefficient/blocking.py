# SPDX-License-Identifier: Apache-2.0
"""Blocked attention of QEfficient's `qaic_config` -> the options of a build.

Input: `enable_blocking`, `blocking_mode` and numbers of blocks. Output: `blocking_mode`, `num_kv_blocks`,
    `num_q_blocks` and `head_block_size` of `qeff_zoo.plan.request.Request`.
"""

import math
import warnings
from collections.abc import Mapping
from itertools import product
from typing import Any

from qeff_zoo.checkpoint.config import HEADS, kv_heads_of, size_of
from qeff_zoo.errors import PlanError

#: Option of each letter of a mode, in QEfficient's order of letters.
_COUNTS = {"h": "head_block_size", "q": "num_q_blocks", "kv": "num_kv_blocks"}
_UNSUPPORTED = ("skip_kv", "num_batch_blocks")
#: Keys of `qaic_config` about blocked attention.
KEYS = frozenset({"enable_blocking", "blocking_mode", *_COUNTS.values(), *_UNSUPPORTED})
#: Arguments of `compile` that determine the numbers of blocks, beside the batch size.
SIZES = ("prefill_seq_len", "ctx_len", "num_devices", "num_cores", "prefill_only")
#: Bytes of a core's memory for the operands of attention.
_MEMORY = 6 << 20
_FLOAT16 = 2


def options_of(
    config: Mapping[str, Any], text_config: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of blocked attention; numbers that are not given follow from a core's memory.

    Args:
        config: Keys of `qaic_config`, those of `KEYS` alone.
        text_config: Raw configuration of the language model.
        sizes: Values of `SIZES`, and `batch_size`.

    Raises:
        PlanError: A key requires another one, or the mode is unknown.
    """
    given = {name: value for name, value in config.items() if value not in (None, False)}
    enabled = given.pop("enable_blocking", False)
    if given and not enabled:
        raise PlanError(
            [
                f"`qaic_config`: {', '.join(map(repr, given))} is given, and enable_blocking is not True; expected "
                "both. Give enable_blocking=True, or leave the others out."
            ]
        )
    if not enabled:
        return {}
    mode = str(getattr(mode := given.pop("blocking_mode", "hqkv"), "value", mode))
    letters = [letter for letter in ("b", *_COUNTS) if letter in mode.replace("qkv", "q kv")]
    if "".join(letters) != mode:
        raise PlanError(
            [
                f"`qaic_config`: blocking_mode is {mode!r}; expected letters of 'bhqkv' in this order, such as 'kv'. "
                "Correct it."
            ]
        )
    if left := {name: given.pop(name) for name in _UNSUPPORTED if name in given}:
        words = ", ".join(f"{name}={value!r}" for name, value in left.items())
        warnings.warn(
            f"`qaic_config`: {words} is left out: a program computes every block of the cache, and the whole batch at "
            "once. Outputs are the same.",
            stacklevel=2,
        )
    cut = {letter: name for letter, name in _COUNTS.items() if letter in letters}
    counts = {name: given[name] for name in cut.values() if name in given}
    if not counts:
        counts = _fitting(cut, text_config, sizes)
    counts = {
        name: count for name, count in counts.items() if name == "head_block_size" or count != 1
    }
    used = "".join(letter for letter, name in cut.items() if name in counts)
    return {"blocking_mode": used, **counts} if used else {}


def _fitting(
    cut: Mapping[str, str], text_config: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, int]:
    """Return the fewest blocks whose queries, keys, values and scores fit into a core's memory."""
    heads = size_of(text_config, HEADS) or 1
    width = int(text_config.get("hidden_size") or text_config.get("n_embd") or heads)
    head_dim = int(text_config.get("head_dim") or width // heads)
    devices, cores = int(sizes["num_devices"] or 1), int(sizes["num_cores"] or 1)
    shared = heads // (kv_heads_of(text_config) or heads)
    sizes_of_blocks = (
        size
        for size in range(devices, heads + 1)
        if heads % size == 0 and (size % shared == 0 or shared % size == 0)
    )
    together = next(sizes_of_blocks, heads) if "h" in cut else heads
    values = int(sizes["batch_size"] or 1) * math.ceil(together / devices) * _FLOAT16
    tokens, ctx_len = math.ceil(int(sizes["prefill_seq_len"]) / cores), int(sizes["ctx_len"])
    cuts_tokens = "q" in cut and bool(sizes["prefill_only"])  # a decode call has one token

    def footprint(blocks: tuple[int, ...]) -> int:
        q, kv = (
            math.ceil(rows / count) for rows, count in zip((tokens, ctx_len), blocks, strict=True)
        )
        return values * (q * head_dim + kv * head_dim + q * kv)

    candidates = [
        [1 << power for power in range(rows.bit_length() if is_cut else 1)]
        for is_cut, rows in ((cuts_tokens, tokens), ("kv" in cut, ctx_len))
    ]
    fitting = [blocks for blocks in product(*candidates) if footprint(blocks) < _MEMORY]
    most = (candidates[0][-1], candidates[1][-1])
    q, kv = min(fitting, key=lambda blocks: (math.prod(blocks), blocks), default=most)
    counts = {"num_q_blocks": q, "num_kv_blocks": kv}
    if together < heads:
        counts["head_block_size"] = together
    return {name: count for name, count in counts.items() if name in cut.values()}
