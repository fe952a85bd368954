# SPDX-License-Identifier: Apache-2.0
"""Speculation: tokens are drafted by prompt lookup, a model, then heads, and the package checks several in one call.

python examples/speculation.py [MODEL [SMALLER_MODEL [HEADS]]]   # default: examples/tiny-llama drafts for itself

HEADS are those of MODEL: a folder or Hub id with Medusa's, an EAGLE-3 layer, or `mtp` for the layer of MODEL itself.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import qeff_zoo
from qeff_zoo import QEFFAutoModelForCausalLM

tiny = str(Path(__file__).parent / "tiny-llama")
target_name, draft_name, *heads = [*sys.argv[1:], *[tiny, tiny][len(sys.argv) - 1 :]]


def untrained(hidden: int) -> str:
    """Write Medusa heads as their training begins: each says the token again that the model has said."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    linear = {"weight": np.zeros((hidden, hidden), "f"), "bias": np.zeros(hidden, "f")}
    tensors = {f"{head}.0.linear.{part}": linear[part] for head in range(2) for part in linear}
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return str(folder)


target = QEFFAutoModelForCausalLM.from_pretrained(
    target_name, qaic_config={"speculative_model_type": "target"}
)
target.compile(prefill_seq_len=32, ctx_len=128, num_speculative_tokens=3)
draft = QEFFAutoModelForCausalLM.from_pretrained(draft_name)
draft.compile(prefill_seq_len=32, ctx_len=128)
hidden = json.loads((Path(target.package.path) / "config.json").read_text())["hidden_size"]
with_heads = qeff_zoo.build(
    target_name, draft_heads=heads[0] if heads else untrained(hidden), ctx_len=128
)

prompt = "class socket.\nclass socket."
for package, drafts in (
    (target.package, None),
    (target.package, "lookup"),
    (target.package, draft.package),
    (with_heads, "heads"),
):
    session = qeff_zoo.load(package, draft=drafts)
    (answer,) = session.generate([prompt], generation_len=32)
    speed = session.metrics
    name = getattr(drafts, "name", drafts)
    print(f"{name}: {speed.accepted_tokens} of {speed.drafted_tokens} drafted tokens accepted")
    print(repr(answer.text))
