# SPDX-License-Identifier: Apache-2.0
"""Prefix caching: a beginning that prompts have in common is computed once, by itself.

python examples/prefix_caching.py [MODEL]   # default: examples/tiny-llama
"""

import sys
from pathlib import Path

import qeff_zoo

model_name = sys.argv[1] if sys.argv[1:] else str(Path(__file__).parent / "tiny-llama")
prefix = "import socket\n\nconnection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)\n" * 2

package = qeff_zoo.build(model_name, prefill_seq_len=32, ctx_len=128, batch_size=1)
session = qeff_zoo.load(package)  # prefix_cache_bytes=0 for none
for ending in ("connection.", "class socket."):
    (answer,) = session.generate([prefix + ending], generation_len=8)
    print(f"{answer.prompt_tokens} prompt tokens, {answer.reused_tokens} of them reused")
    print(f"{ending!r} -> {answer.text!r}")
