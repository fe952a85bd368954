# SPDX-License-Identifier: Apache-2.0
"""Compute context lengths: calls read the smallest number of rows of the cache that holds their tokens.

python examples/compute_contexts.py [MODEL]   # default: examples/tiny-llama

ONNX Runtime's attention kernel reads only tokens that are there, so that a graph with it needs no such list and takes
none; a card's does. `qeff-zoo inspect` says which of the two a package is.
"""

import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForCausalLM

model_name = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")
lengths = [64, 128]

model = QEFFAutoModelForCausalLM.from_pretrained(model_name, qaic_config={"ccl_enabled": True})
model.compile(
    prefill_seq_len=32,
    ctx_len=128,
    num_cores=16,
    comp_ctx_lengths_prefill=lengths,
    comp_ctx_lengths_decode=lengths,
)
model.generate(prompts=["class socket."], generation_len=24)

folder = model.compile(
    target="qaic", ctx_len=128, comp_ctx_lengths_decode=lengths, compile_dir="compute-contexts"
)
print((Path(folder) / "specializations.json").read_text())  # one Decode for each length
