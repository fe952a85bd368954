# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness over the completions API, beside its own transformers model of the same checkpoint."""

import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkout import TINY_LLAMA

from interop_checks.clients import KEY, environment, serving
from interop_checks.packages import package
from interop_checks.reasons import FAILS, PASS

#: The harness, in an environment that has the packages of this one too.
HARNESS = ("lm-eval[api]==0.4.13",)
QUESTIONS = 20
#: Largest difference of two log-likelihoods.
TOLERANCE = 1e-4


def run(cache: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Compute both models' figures; return a row for each score, and for each question.

    Args:
        cache: Folder of the environment, the data and the packages.
        only: Texts, one of which the name of a row has; empty for all.
    """
    built = package("generator", cache)
    folder = cache / "lm-eval-data"
    write_task(folder, QUESTIONS)
    python = environment(cache / "lm-eval", HARNESS, has_own=True)
    figures = Path(__file__).with_name("evaluation_figures.py")
    command = [str(python), "-W", "ignore", str(figures), str(folder)]
    with serving("-m", "qeff_zoo", "serve", f"model={built.path}") as url:
        command += [url, KEY, str(cache / "checkpoints" / "generator")]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    theirs, ours = json.loads(ended.stdout.splitlines()[-1])
    rows = compared(ours, theirs)
    return [row for row in rows if not only or any(one in row["test"] for one in only)]


def write_task(folder: Path, count: int) -> None:
    """Write questions with four answers each, in arc_easy's form, and their task.

    Args:
        folder: Folder of both files.
        count: Number of questions.
    """
    draw = random.Random(1)
    text = (TINY_LLAMA / "README.md").read_text(encoding="utf-8")
    words = sorted(set(re.findall(r"[A-Za-z]{3,}", text)))
    questions = [
        {
            "question": f"What is {draw.choice(words)}?",
            "choices": {"text": draw.sample(words, 4), "label": [*"ABCD"]},
            "answerKey": draw.choice("ABCD"),
        }
        for _ in range(count)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "questions.jsonl"
    data.write_text(
        "".join(f"{json.dumps(question)}\n" for question in questions), encoding="utf-8"
    )
    scores = ("acc", "acc_norm")
    task = {
        "task": "questions",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices.label.index(answerKey)}}",
        "doc_to_choice": "{{choices.text}}",
        "metric_list": [
            {"metric": score, "aggregation": "mean", "higher_is_better": True} for score in scores
        ],
    }
    (folder / "questions.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each score, and for the log-likelihoods of each question.

    Args:
        ours: Scores, and log-likelihoods by question, over HTTP.
        theirs: The same of transformers.
    """
    rows = [
        {"test": name, "result": PASS if ours["scores"][name] == score else FAILS}
        | {"reason": f"{name}: {ours['scores'][name]:.2f} over HTTP, {score:.2f} in transformers"}
        for name, score in theirs["scores"].items()
    ]
    for number, (one, other) in enumerate(
        zip(ours["log_likelihoods"], theirs["log_likelihoods"], strict=True)
    ):
        most = max(abs(a - b) for a, b in zip(one, other, strict=True))
        same = most <= TOLERANCE
        reason = "" if same else f"log-likelihoods differ by {most:.2g}, {TOLERANCE} expected"
        rows.append(
            {"test": f"question {number}", "result": PASS if same else FAILS, "reason": reason}
        )
    return rows
