# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: answers begin and end by themselves, on as many slots as `full_batch_size` says.

python examples/continuous_batching.py [MODEL]   # default: examples/tiny-llama
"""

import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForCausalLM

model_name = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")
prompts = ["class socket.", "class collections.", "def open(", "import os", "The module "]

model = QEFFAutoModelForCausalLM.from_pretrained(model_name, continuous_batching=True)
model.compile(prefill_seq_len=32, ctx_len=128, full_batch_size=2, num_cores=16)
info = model.generate(prompts=prompts, generation_len=16, stream=False)
for prompt, text in zip(prompts, info.generated_texts, strict=True):
    print(f"{prompt!r} -> {text!r}")
print(f"{len(prompts)} prompts on {info.batch_size} slots", info, sep="\n")
