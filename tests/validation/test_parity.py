# SPDX-License-Identifier: Apache-2.0
"""The comparisons of `parity` detect faults: graphs are damaged, and the comparison fails."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import parity
import pytest
from aligned import aligned, widened
from onnx_ir.tape import Tape

#: First damaged position: a third of the compared positions come from there.
SINCE = 12


def drop_a_head(path: Path) -> None:
    """From a position on, lose the first head of the second attention of a lowered graph."""
    model = ir.load(path)
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"][1]
    (attended, *_), heads = attention.outputs, attention.attributes.get_int("num_heads")
    positions = next(value for value in model.graph.inputs if value.name == "position_ids")
    width = next(value for value in model.graph.inputs if value.name == "past_key.0").shape[3]  # type: ignore[index]
    users = list(attended.uses())
    tape = Tape()
    ones = np.ones((1, 1, heads * width), np.float32)
    lost = ones.copy()
    lost[..., :width] = 0
    late = tape.op(
        "Less",
        [
            tape.op("Constant", [], {"value_int": SINCE - 1}),
            tape.op("Unsqueeze", [positions, tape.op("Constant", [], {"value_ints": [-1]})]),
        ],
    )
    factors = [tape.op("Constant", [], {"value": ir.tensor(one)}) for one in (lost, ones)]
    kept = tape.op("Mul", [attended, tape.op("Where", [late, *factors])])
    model.graph.insert_after(attention, tape.nodes)
    for node, place in users:
        node.replace_input_with(place, kept)
    ir.save(model, path)


@pytest.mark.parametrize("name", ["llama-base", "mixtral-base"])
def test_a_head_that_is_lost_at_late_positions_is_detected(name: str, tmp_path: Path) -> None:
    """Two of three positions are right, so that a median would not detect it."""
    subject = parity.subject(name)
    found = {}
    for kind in ("whole", "damaged"):
        path = subject.save_lowered(tmp_path / kind, "int4")
        if kind == "damaged":
            drop_a_head(path)
        session = parity.open_session(path)
        found[kind] = parity.stray(
            lambda: parity.decoder_steps(session, parity.ROWS),  # noqa: B023
            subject,
            "int4",
        )
    assert found["whole"] <= parity.TOLERANCE["as shipped"]
    assert found["damaged"] > 1.5 * parity.TOLERANCE["as shipped"]


def test_activations_of_experts_are_rounded_too() -> None:
    """Hugging Face's routers then choose as ours do; without their experts' rounding they are far from it."""
    subject, ids = parity.subject("mixtral-base"), parity.tokens()
    rounded = subject.rounded("int4")
    mode = parity.RoundedActivations(rounded, subject.lower("int4").numerics.matrices)
    stacks = {
        weight.untyped_storage().data_ptr() for weight in rounded.parameters() if weight.dim() == 3
    }
    assert stacks
    with mode:
        whole = parity.reference(rounded, ids)
    mode.formats = {place: format for place, format in mode.formats.items() if place not in stacks}
    with mode:
        assert np.abs(parity.reference(rounded, ids) - whole).max() > 1e-3


# --- sizes of production -------------------------------------------------------------------------


def test_widths_grow_alike_and_counts_do_not() -> None:
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 64,
        "head_dim": 24,
        "num_attention_heads": 4,
        "num_experts": 5,
        "moe_intermediate_size": 48,
        "sliding_window": 7,
        "vocab_size": 257,
        "initializer_range": 0.2,
        "rope_parameters": {"rope_type": "longrope", "long_factor": [1.0, 2.0], "factor": 4.0},
    }
    assert widened(config, 4) == {
        **config,
        "hidden_size": 256,
        "head_dim": 96,
        "moe_intermediate_size": 192,
        "initializer_range": 0.1,
        "rope_parameters": {
            "rope_type": "longrope",
            "long_factor": [1.0] * 4 + [2.0] * 4,
            "factor": 4.0,
        },
    }


def test_the_smallest_factor_that_aligns_sizes_is_chosen() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    assert aligned(config) == config
    assert aligned({**config, "head_dim": 24})["head_dim"] == 48
    assert aligned({**config, "head_dim": 10})["head_dim"] == 80
    with pytest.raises(ValueError, match=r"\(13, 16\).*Expected an even number"):
        aligned({"model_type": "gpt2", "n_embd": 65, "n_head": 5})
