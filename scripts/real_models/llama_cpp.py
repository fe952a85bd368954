# SPDX-License-Identifier: Apache-2.0
"""Predictions of llama.cpp, in a process that has the tests on its path.

    python -m real_models.llama_cpp < request.json

In: a GGUF `file`, a `text`, its `tokens`, `windows` of them (start, first, stop) and a file for `logits`. Out: in that
file the logits that predict each target; on stdout, whether llama.cpp makes the same tokens of the text. Keys and
values are in float32, so that only the products round.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    """Answer the request."""
    from llama_cpp import opened

    asked = json.load(sys.stdin)
    tokens = asked["tokens"]
    with opened(Path(asked["file"])) as model:
        rows = [
            model.logits(tokens[start : stop - 1])[first - 1 - start :]
            for start, first, stop in asked["windows"]
        ]
        same = model.encode(asked["text"]) == tokens
    np.save(asked["logits"], np.concatenate(rows) if rows[1:] else rows[0])
    json.dump({"same_tokens": same}, sys.stdout)


if __name__ == "__main__":
    main()
