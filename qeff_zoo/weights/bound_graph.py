# SPDX-License-Identifier: Apache-2.0
"""A traced graph whose initializers are bound to checkpoint tensors: the exporter makes it, targets lower it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.types import Expression

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.encoded import Encoded


@dataclass(frozen=True, kw_only=True)
class BoundGraph:
    """A portable graph and where its weights come from.

    Args:
        model: An `onnx_ir.Model`; initializers of a checkpoint have no data.
        bindings: Expression over checkpoint tensors for each of those.
        encoded: Tensors among them that the checkpoint stores in fewer bits.
        digest: "sha256:…" of the graph file.
        cached: Whether it came from the store.
        left_out: Checkpoint tensors that it does not read, without those that transformers ignores.
        unused: Tensors among them that the model has no place for, such as another head.
    """

    model: Any
    bindings: Mapping[str, Expression]
    digest: str
    cached: bool
    encoded: "Mapping[str, Encoded]" = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
