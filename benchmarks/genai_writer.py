# SPDX-License-Identifier: Apache-2.0
"""A package of a decoder as a model of onnxruntime-genai that writes a given text by itself.

Its graph has one input more, `text` (all tokens, prompt first), and adds so much to the logit of the text's own next
token that it wins. So drafts are right where the text has them, and what is computed stays the same.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_MUCH = 1e9


def make(package: Path, folder: Path) -> Path:
    """Write the model beside a package, whose weights it links; return its folder.

    Args:
        package: Built without speculation, so that its graph is one of onnxruntime-genai's.
        folder: To write; complete whenever it exists.
    """
    if folder.is_dir():
        return folder
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    model = onnx.load(package / "graph.onnx", load_external_data=False)
    _write_by_itself(model.graph)
    onnx.save(model, unfinished / "graph.onnx")
    # onnxruntime-genai refuses data outside of the folder, also by a symbolic link.
    (unfinished / "weights.safetensors").hardlink_to(package / "weights.safetensors")
    config = json.loads((package / "genai_config.json").read_bytes())
    (unfinished / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    unfinished.rename(folder)
    return folder


def _write_by_itself(graph: onnx.GraphProto) -> None:
    """Return logits after every token, as checking drafts needs, and let the text's own be the largest."""
    made_by = {name: node for node in graph.node for name in node.output}
    head = made_by["logits"]
    last = made_by[head.input[0]]
    assert last.op_type == "GatherElements", "the states of last tokens are expected before logits"
    every = made_by[last.input[0]]
    head.input[0] = every.input[0] if every.op_type == "Slice" else last.input[0]
    head.output[0] = "own_logits"
    (logits,) = (value for value in graph.output if value.name == "logits")
    logits.type.tensor_type.shape.dim[1].dim_param = "seq_len"
    graph.input.append(helper.make_tensor_value_info("text", TensorProto.INT64, ["text_len"]))
    constants = {"one": np.array(1), "last_axis": np.array([2]), "much": np.float32(_MUCH)}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), f"text_{name}")
        for name, value in constants.items()
    )
    graph.node.extend(
        [
            helper.make_node("Add", ["position_ids", "text_one"], ["text_next"]),
            helper.make_node("Gather", ["text", "text_next"], ["text_token"]),
            helper.make_node("Unsqueeze", ["text_token", "text_last_axis"], ["text_index"]),
            helper.make_node("Shape", ["text_index"], ["text_shape"]),
            helper.make_node("Expand", ["text_much", "text_shape"], ["text_values"]),
            helper.make_node(
                "ScatterElements", ["own_logits", "text_index", "text_values"], ["logits"], axis=2
            ),
        ]
    )
