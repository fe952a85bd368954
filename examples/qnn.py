# SPDX-License-Identifier: Apache-2.0
"""The QNN SDK: QEfficient's `enable_qnn` and its file; without the SDK a folder to compile is left.

python examples/qnn.py [MODEL]   # default: examples/tiny-llama; writes the folder `qnn` here
"""

import json
import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForCausalLM

model_name = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")
config = Path("qnn_config.json")
config.write_text(json.dumps({"context_binary_generator_args_extension": "--log_level debug"}))

model = QEFFAutoModelForCausalLM.from_pretrained(model_name)
folder = model.compile(
    target="qnn-aic",
    enable_qnn=True,
    qnn_config=str(config),
    prefill_seq_len=32,
    ctx_len=128,
    num_cores=16,
    mxfp6_matmul=True,
    compile_dir="qnn",
)
print((Path(folder) / "compile.sh").read_text())
