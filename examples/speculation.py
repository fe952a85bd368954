# SPDX-License-Identifier: Apache-2.0
"""Speculation: tokens are drafted by prompt lookup, then by a model, and the package checks several in one call.

python examples/speculation.py [MODEL [SMALLER_MODEL]]   # default: examples/tiny-llama drafts for itself
"""

import sys
from pathlib import Path

import qeff_zoo
from qeff_zoo import QEFFAutoModelForCausalLM

tiny = str(Path(__file__).parent / "tiny-llama")
target_name, draft_name = [*sys.argv[1:], tiny, tiny][:2]

target = QEFFAutoModelForCausalLM.from_pretrained(
    target_name, qaic_config={"speculative_model_type": "target"}
)
target.compile(prefill_seq_len=32, ctx_len=128, num_speculative_tokens=3)
draft = QEFFAutoModelForCausalLM.from_pretrained(draft_name)
draft.compile(prefill_seq_len=32, ctx_len=128)

prompt = "class socket.\nclass socket."
for drafts in (None, "lookup", draft.package):
    session = qeff_zoo.load(target.package, speculate=drafts)
    (answer,) = session.generate([prompt], generation_len=32)
    speed = session.metrics
    name = getattr(drafts, "name", drafts)
    print(f"{name}: {speed.accepted_tokens} of {speed.drafted_tokens} drafted tokens accepted")
    print(repr(answer.text))
