# SPDX-License-Identifier: Apache-2.0
"""Layouts of mlx-lm: how its tensors of each model differ from those of transformers' checkpoints.

Most have the same names. mlx-lm stacks experts, moves the channels of convolutions last, and merges the one that some
norms add into their weights. Each model here was compared with tensors that mlx-lm wrote. Source:
https://github.com/ml-explore/mlx-lm, `Model.sanitize` of `models/*.py`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from qeff_zoo.checkpoint.expressions import concat, index, reshape, transpose
from qeff_zoo.checkpoint.types import Expression

#: Kernels of depthwise convolutions, (channels, width, 1) in mlx and (channels, 1, width) in torch.
_KERNEL = re.compile(r"\.conv(1d|\.conv)\.weight$")
#: Norms whose weights transformers stores less one.
_NORM = re.compile(r"(_layernorm|model\.norm|\.q_norm|\.k_norm)\.weight$")
_KEYS, _VALUES, _BOTH = ".embed_q.weight", ".unembed_out.weight", ".kv_b_proj.weight"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a model.

    Args:
        names: Ends of names in the float model by those in mlx; "{}" is an expert's number, for each of a stack.
        one_more: Whether mlx-lm added one to weights of norms.
        squeezed: Ends of names of numbers that are vectors of one in the float model.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    one_more: bool = False
    squeezed: tuple[str, ...] = ()

    def is_one_more(self, name: str) -> bool:
        """Whether mlx-lm added one to a tensor."""
        return self.one_more and _NORM.search(name) is not None

    def values(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Expression]:
        """Return expressions of the float model's tensors that mlx stores under other names or in other shapes.

        Args:
            shapes: Shapes of mlx's tensors, dequantized, by name.
        """
        values: dict[str, Expression] = {}
        for name, shape in shapes.items():
            old = next((end for end in self.names if name.endswith(end)), None)
            if old is not None:
                new = name.removesuffix(old) + self.names[old]
                numbers = range(shape[0]) if "{}" in new else ()
                values |= {new.format(number): index(number, name) for number in numbers}
                values |= {} if numbers else {new: name}
            elif name.endswith(_KEYS):
                values[name.removesuffix(_KEYS) + _BOTH] = _latent_heads(name, shapes)
            elif _KERNEL.search(name) and len(shape) == 3:
                values[name] = transpose(1, 2, name)
            elif name.endswith(self.squeezed or "\0"):
                values[name] = reshape((1,), name)
        return values


def _latent_heads(keys: str, shapes: Mapping[str, tuple[int, ...]]) -> Expression:
    """Join the rows of keys and values of each head; those of keys are stored transposed."""
    values = keys.removesuffix(_KEYS) + _VALUES
    heads, rank, size = shapes[keys]
    rows = heads * (size + shapes[values][1])
    return reshape((rows, rank), concat(1, transpose(1, 2, keys), values))


def _read_layouts() -> dict[str, Layout]:
    content = json.loads(Path(__file__).with_name("mlx_layouts.json").read_text(encoding="utf-8"))
    return {
        model_type: Layout(
            names={
                old: new for group in entry["names"] for old, new in content["names"][group].items()
            },
            one_more=entry.get("one_more", False),
            squeezed=tuple(entry.get("squeezed", ())),
        )
        for entry in content["layouts"]
        for model_type in entry["models"]
    }


#: Layout by `model_type`; models that are not here are refused.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(_read_layouts())
