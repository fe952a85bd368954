# SPDX-License-Identifier: Apache-2.0
"""Figures of lm-evaluation-harness, in its own environment: transformers' and the server's, as a line of JSON."""

import json
import os
import sys
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

_LONGEST = 511  # tokens


def figures(folder: str, model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a model, and its log-likelihoods by question.

    Args:
        folder: Folder of the task.
        model: Name of the kind of model.
        arguments: Arguments of the model.
    """
    found = lm_eval.simple_evaluate(
        model=model,
        model_args={**arguments, "max_length": _LONGEST},
        tasks=["questions"],
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        batch_size=1,
        log_samples=True,
        bootstrap_iters=0,
    )
    scores = found["results"]["questions"]
    samples = sorted(found["samples"]["questions"], key=lambda one: one["doc_id"])
    return {
        "scores": {name: scores[f"{name},none"] for name in ("acc", "acc_norm")},
        "log_likelihoods": [[float(resp[0]) for resp in row["filtered_resps"]] for row in samples],
    }


if __name__ == "__main__":
    folder, url, key, checkpoint = sys.argv[1:]
    os.environ["OPENAI_API_KEY"] = key
    served = {
        "model": "model",
        "base_url": f"{url}/completions",
        "tokenizer": checkpoint,
        "tokenizer_backend": "huggingface",
        "tokenized_requests": True,
        "num_concurrent": 2,
    }
    own = {"pretrained": checkpoint, "device": "cpu", "dtype": "float32", "add_bos_token": False}
    both = [figures(folder, "hf", own), figures(folder, "local-completions", served)]
    print(json.dumps(both))
