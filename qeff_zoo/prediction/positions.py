# SPDX-License-Identifier: Apache-2.0
"""A decoder's graph returns the logits of every new token, in place of those of the newest alone."""

import onnx_ir as ir

from qeff_zoo.errors import CompileError


def return_all(model: ir.Model) -> None:
    """Leave out, in place, that the newest token's hidden state is picked before the head.

    Args:
        model: A portable graph; its `logits` become (batch_size, seq_len, vocab).

    Raises:
        CompileError: No such place was found.
    """
    picks = [node for node in model.graph if node.op_type == "GatherElements" and _newest(node)]
    if len(picks) != 1:
        raise CompileError(
            f"Graph {model.graph.name!r} picks the newest token in {len(picks)} places; expected one. Give the "
            "portable graph of a text-generation model, as it was traced."
        )
    (pick,) = picks
    every = pick.inputs[0]
    assert every is not None
    (logits,) = (value for value in model.graph.outputs if value.name == "logits")
    (rows,) = (value.shape for value in model.graph.inputs if value.name == "position_ids")
    assert logits.shape is not None
    assert rows is not None
    vocabulary = logits.shape[-1]
    ir.convenience.replace_all_uses_with(pick.outputs[0], every)
    later = [every]  # sizes of what is computed from it were those of one token
    while later:
        for node in {use.node for use in later.pop().uses()}:
            for output in node.outputs:
                if output.shape is not None and output not in model.graph.outputs:
                    later.append(output)
                    output.shape = None
    model.graph.remove(pick, safe=True)
    logits.shape = ir.Shape([*rows, vocabulary])


def _newest(pick: ir.Node) -> bool:
    """Whether positions select the result: that of the largest."""
    todo = [pick.inputs[1]]
    while todo:
        value = todo.pop()
        node = None if value is None else value.producer()
        if node is None:
            continue
        if node.op_type == "ArgMax":
            given = node.inputs[0]
            return given is not None and given.name == "position_ids"
        if node.op_type in ("Cast", "Expand", "Identity", "Slice", "Unsqueeze", "Reshape"):
            todo.append(node.inputs[0])
    return False
