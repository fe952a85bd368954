# SPDX-License-Identifier: Apache-2.0
"""Results of QEfficient's unit tests on qeff-zoo: files of `pytest --junitxml` in, a record and its table out.

PYTHONPATH=scripts python -m qefficient_examples.unit_tests CHECKOUT/tests/unit_test FOLDER_OF_XML
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tabulate import tabulate

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "qefficient_unit_tests.json"
_MODULE, _OBJECTS = "its PyTorch module", "objects of its modules"
#: A failure's message -> what the test uses; names are QEfficient's.
_INTERNALS = (
    (r"QEfficient's '([\w.]+)' has no counterpart", None),
    (r"The model has no PyTorch module", _MODULE),
    (r"'ModelView' object is not callable", _MODULE),
    (r"`transform` was called", "transform"),
    (r"has no attribute '(\w+)'", None),
    (r"isinstance\(\) arg 2 must be a type|X is not a type object|_Missing'? ", _OBJECTS),
    (r"assert hasattr\([^,]+, ['\"](\w+)['\"]\)", None),
    (r"transform attributes", "_pytorch_transforms"),
)
#: Kinds of internals: names, and the reason why they have no counterpart.
KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "its PyTorch module": (
        (_MODULE, "transform", "_offload_model_weights", "_is_weights_offloaded", "_model_offloaded_check"),
        "A build reads weights from the checkpoint; there is no module to call, to change or to offload.",
    ),
    "lists of transforms": (
        ("pytorch_transforms", "_pytorch_transforms", "_onnx_transforms", "_transform_names", "apply",
         "SplitTensorsTransform"),
        "transformers' own code is traced; what differs from it is in `recipes/`.",
    ),
    "tables of its classes": (
        (_OBJECTS, "modeling_utils", "_hf_auto_class", "MISCLASSIFIED_CAUSAL_LM_TO_QEFF_AUTO_CLASS_MAP",
         "__contains__"),
        "They map transformers' classes to QEfficient's own; a recipe is found by the `model_type`.",
    ),
    "private classes of vision-language models": (
        ("_QEffAutoModelForImageTextToTextDualQPC", "_QEFFAutoModelForImageTextToTextSingleQPC"),
        "`QEFFAutoModelForImageTextToText` is one class here, with the same arguments.",
    ),
    "steps within `compile`": (
        ("mdp_generator", "modeling_qeff", "check_ccl_specializations", "check_and_get_num_speculative_tokens",
         "hash_params", "device_utils"),
        "The plan of a build has these steps; its options are arguments of `compile`.",
    ),
    "steps within `export`": (
        ("sampler_utils", "hash_utils"),
        "The task defines inputs and outputs of a graph, and the plan its key.",
    ),
    "steps within `generate`": (
        ("embedding_handler", "vlm_generation", "qpc_session"),
        "The session of the package does them; for loops of one's own there is `QAICInferenceSession`.",
    ),
    "steps within `finetune`": (
        ("setup_seeds", "apply_peft", "setup_distributed_training", "setup_dataloaders", "load_model_and_tokenizer"),
        "trl, peft and transformers do them; `finetune.main` has the arguments.",
    ),
}  # fmt: skip
_SHOWN = 5  # names in a row
_LONGEST = 140  # characters of a message


def internal_of(message: str) -> str:
    """Return the internal name that a failed test uses; empty if the failure is another one.

    Args:
        message: Message of the failure.
    """
    for pattern, name in _INTERNALS:
        if found := re.search(pattern, message):
            return name or found[1].rpartition(".")[2]
    return ""


def row_of(name: str, path: Path) -> dict[str, Any]:
    """Return the row of a file of tests.

    Args:
        name: Path of the file in QEfficient's `tests/unit_test`.
        path: File of `pytest --junitxml`.
    """
    passed, skipped = 0, 0
    internals, others = Counter[str](), {}
    for case in ElementTree.parse(path).iter("testcase"):
        failure = next((one for one in case if one.tag in ("failure", "error")), None)
        if failure is None:
            skipped += case.find("skipped") is not None
            passed += case.find("skipped") is None
            continue
        message = failure.get("message", "")
        if internal := internal_of(f"{message}\n{failure.text}"):
            internals[internal] += 1
        else:
            line = re.sub(r"qeff-model-\w+", "MODEL", message.strip().splitlines()[0])
            others[str(case.get("name"))] = line.removeprefix("qeff_zoo.errors.")
    return {
        "file": name,
        "passed": passed,
        "skipped": skipped,
        "internals": dict(internals.most_common()),
        "others": others,
    }


def table(path: Path = RECORD) -> str:
    """Return a row for each file, and one for each failure without an internal name, in Markdown.

    Args:
        path: JSON file of the rows.
    """
    rows = json.loads(path.read_bytes())
    shown = [
        [
            f"`{row['file']}`",
            row["passed"],
            row["skipped"],
            sum(row["internals"].values()),
            len(row["others"]),
            ", ".join(
                f"`{name}`" if " " not in name else name for name in [*row["internals"]][:_SHOWN]
            ),
        ]
        for row in rows
    ]
    sums = [sum(row[place] for row in shown) for place in range(1, 5)]
    header = ("file", "pass", "skipped", "use internals", "other", "internals")
    others = [
        [f"`{name}`", line.replace("|", "\\|")[:_LONGEST]]
        for row in rows
        for name, line in row["others"].items()
    ]
    tables = (
        tabulate([*shown, ["all", *sums, ""]], header, tablefmt="github"),
        tabulate(_kinds(rows), ("internals", "failures", "reason"), tablefmt="github"),
        tabulate(others, ("other failure", "message"), tablefmt="github"),
    )
    return "\n\n".join(tables)


def _kinds(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    """Return the number of failures of each kind of internals, the most frequent first.

    Args:
        rows: Rows of the files.

    Raises:
        KeyError: A name has no kind.
    """
    kind_of = {name: kind for kind, (names, _) in KINDS.items() for name in names}
    counts = Counter[str]()
    for row in rows:
        for name, count in row["internals"].items():
            counts[kind_of[name]] += count
    return [(kind, count, KINDS[kind][1]) for kind, count in counts.most_common()]


def main() -> None:
    """Record the results of all files that have a result."""
    tests, results = map(Path, sys.argv[1:3])
    found = {path.stem: path.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    rows = [row_of(found[path.stem], path) for path in sorted(results.glob("test_*.xml"))]
    rows.sort(key=lambda row: row["file"])
    RECORD.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
