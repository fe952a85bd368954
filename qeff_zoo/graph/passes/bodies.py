# SPDX-License-Identifier: Apache-2.0
"""Calls of semantic ops get the bodies that they call; what nothing uses is removed."""

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.graph import semantic
from qeff_zoo.graph.semantic.domains import SEMANTIC


def attach(model: ir.Model) -> int:
    """Attach the bodies of the semantic ops in use, and drop unused nodes and functions; return how many are in use."""
    onnx_passes.RemoveUnusedNodesPass()(model)
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    nodes = [*model.graph.all_nodes(), *inner]
    used = {node.op_type for node in nodes if node.domain == SEMANTIC}
    for function in semantic.functions(used):
        model.functions[function.identifier()] = function
    onnx_passes.RemoveUnusedFunctionsPass()(model)
    model.opset_imports[SEMANTIC] = 1
    return len(used)
