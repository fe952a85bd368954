# SPDX-License-Identifier: Apache-2.0
"""Text generation with QEfficient's class: load, compile, generate.

python examples/text.py [MODEL]   # default: examples/tiny-llama
"""

import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForCausalLM

model_name = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")

model = QEFFAutoModelForCausalLM.from_pretrained(model_name)
print("package:", model.compile(prefill_seq_len=32, ctx_len=128, num_cores=16))
info = model.generate(prompts=["class socket."], generation_len=24)  # printed as it grows
print(info)
