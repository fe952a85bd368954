# SPDX-License-Identifier: Apache-2.0
"""Several cards: a model sliced over four devices, as two stages of two; without an SDK a folder to compile is left.

python examples/devices.py [MODEL]   # default: examples/tiny-llama; writes the folder `devices` here
"""

import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForCausalLM

model_name = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")

model = QEFFAutoModelForCausalLM.from_pretrained(model_name)
folder = model.compile(
    target="qaic",
    prefill_seq_len=32,
    ctx_len=128,
    num_cores=16,
    num_devices=4,
    mdp_num_partitions=2,
    mxfp6_matmul=True,
    mxint8_kv_cache=True,
    compile_dir="devices",
)
print((Path(folder) / "compile.sh").read_text())
