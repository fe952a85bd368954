# SPDX-License-Identifier: Apache-2.0
"""AutoRound: one of the layouts of GPTQ, AWQ and compressed-tensors, by `packing_format`.

Zero points are those of GPTQ version 1 in "auto_round:auto_gptq" and "auto_round:gptq", of version 2 in all others.
Source: https://github.com/intel/auto-round, `inference/convert_model.py`, `auto_round_extension/torch`.
"""

from collections.abc import Mapping
from typing import Any

from qeff_zoo.checkpoint.encoded import Encodings, Stored

from . import awq, compressed_tensors, gptq

#: Axis of a matrix's rows in each stored tensor, by the end of its name; None for a tensor without them.
ROWS = {**gptq.ROWS, **compressed_tensors.ROWS}
_GPTQ = {"auto_gptq": 1, "gptq": 1, "gptqmodel": 2, "exllamav2": 2, "auto_round": 2}
_AWQ = ("auto_awq", "awq")


def problem(config: Mapping[str, Any]) -> str:
    """Explain why a variant cannot be read; empty if it can."""
    layout = _layout(config)
    if config.get("rotation_config"):
        return "AutoRound with rotations of activations"
    if layout in _GPTQ:
        return gptq.problem({**config, "checkpoint_format": "gptq"})
    if layout in _AWQ:
        return awq.problem({**config, "version": "gemm"})
    if layout == "llm_compressor":
        return ""
    return f"AutoRound in the layout {layout!r}; {', '.join([*_GPTQ, *_AWQ, 'llm_compressor'])} can be read"


def encodings(stored: Stored) -> Encodings:
    """Find the matrices of an AutoRound checkpoint."""
    layout = _layout(stored.config)
    if layout == "llm_compressor":
        return compressed_tensors.with_sizes(stored, [stored.config])
    paths = stored.modules("qweight")
    if layout in _AWQ:
        return Encodings(encoded={f"{path}.weight": awq.matrix(stored, path) for path in paths})
    version = _GPTQ[layout]
    return Encodings(
        encoded={f"{path}.weight": gptq.matrix(stored, path, version) for path in paths}
    )


def _layout(config: Mapping[str, Any]) -> str:
    return str(config.get("packing_format") or "auto_gptq").rpartition(":")[2]
