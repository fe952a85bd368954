# SPDX-License-Identifier: Apache-2.0
"""Casts between operands' types, written by the ONNX exporter without running the whole program again.

`torch.onnx.export` interprets a traced program to obtain the result type of each node, a fifth of the export time. The
trace has stored that on every node already.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.fx import Node
from torch.onnx._internal.fx.passes import type_promotion

_Interpreter = type_promotion._TypePromotionInterpreter
_run = _Interpreter.run_node


@contextmanager
def as_traced() -> Iterator[None]:
    """Take a node's result type from the trace; a node with cast operands is run."""
    with mock.patch.object(_Interpreter, "run_node", _run_node):
        yield


def _run_node(interpreter: Any, node: Node) -> Any:
    if node.op != "call_function" or "val" not in node.meta:
        return _run(interpreter, node)
    if rule := type_promotion.get_type_promotion_rule(node, interpreter.type_promotion_table):
        with interpreter._set_current_node(node):
            interpreter._maybe_promote_node(node, rule)
    return node.meta["val"]
