# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of a stranger's adapter: they mean what they mean to peft, or are refused by name, at once."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_patterns import MODULE, adapter
from peft.utils.other import get_pattern_key

from qeff_zoo.checkpoint.adapters import patterns
from qeff_zoo.checkpoint.adapters.patterns import PatternError, Patterns
from qeff_zoo.checkpoint.adapters.peft_files import open_adapter
from qeff_zoo.errors import AdapterError

ENDLESS = r"(([a-z0-9_.])+)+X"
#: Patterns that peft's users write.
USUAL = (
    "q_proj", "layers.1.mlp.down_proj", r".*\.layers\.\d+\.(q_proj|v_proj)", r"\w+", "lm_head$", "^lm_head", "",
    r"^model\.layers\.[0-9]+\.mlp\.(?:up|down)_proj$", "down_pro", r"(.*)layers\.1?1\.(self_attn\.[kqv]_proj|mlp.*)",
)  # fmt: skip
NAMES = (
    MODULE,
    "model.layers.11.mlp.down_proj",
    "model.layers.1.mlp.down_proj",
    "lm_head",
    "",
    "a.",
)


@pytest.mark.parametrize("table", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_that_backtracks_for_ever_ends_at_once(table: str, tmp_path: Path) -> None:
    """In a process of its own: `re` holds the GIL, so that nothing in this one would end it."""
    folder = adapter(tmp_path / "adapter", **{table: {ENDLESS: 2, "q_proj": 2.0}})
    code = (
        "import sys; from qeff_zoo.checkpoint.adapters.peft_files import open_adapter as o; a = o(sys.argv[1]); "
        f"print(a.modules, a.scaling({MODULE!r}))"
    )
    argv = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    scaling = "2.0" if table == "rank_pattern" else "1.0"
    assert done.stdout == f"{{'{MODULE}': 2}} {scaling}\n"


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_mean_what_they_mean_to_peft(pattern: str) -> None:
    for name in NAMES:
        expected = get_pattern_key([pattern, ".*"], name)
        assert Patterns([pattern, ".*"]).first(name) == expected, name


def drawn(rng: random.Random, depth: int = 4) -> str:
    """Draw a regular expression."""
    kind = rng.random()
    if not depth or kind < 0.35:
        return rng.choice(
            [*"abc0.^$", r"\.", r"\d", r"\w", r"\S", r"\W", "[ab]", "[^a.]", r"[\dbc]"]
        )
    first, second = drawn(rng, depth - 1), drawn(rng, depth - 1)
    if kind < 0.5:
        return first + second
    if kind < 0.7:
        return f"({first}|{second})"
    return f"(?:{first}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '*?', '{,2}', '{2,}'])}"


def test_any_regular_expression_means_what_it_means_to_re() -> None:
    rng, fitting = random.Random(40), 0
    for _ in range(3000):
        pattern, name = drawn(rng), "".join(rng.choices("abc0.", k=rng.randint(0, 8)))
        expected = re.match(rf"(.*\.)?({pattern})$", name) is not None
        assert (Patterns([pattern]).first(name) is not None) == expected, (pattern, name)
        fitting += expected
    assert 300 < fitting < 2700


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(?=q)q_proj", "ASSERT cannot be matched without backtracking"),
        (r"(q)\1", "GROUPREF cannot be"),
        (r"(?i)Q_PROJ", "FLAGS cannot be"),
        (r"(?i:Q)_proj", "FLAGS cannot be"),
        (r"\bq_proj", "AT_BOUNDARY cannot be"),
        ("(", "it is no regular expression: missing"),
        ("a{99999999999}", "it is no regular expression: the repetition"),
        ("(" * 2000 + ")" * 2000, "it is no regular expression: maximum recursion"),
        ("a" * 5000, "it has 5,000 characters, more than 4,096"),
    ],
)  # fmt: skip
def test_what_needs_backtracking_is_refused_by_name(
    pattern: str, reason: str, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "adapter", rank_pattern={pattern: 2})
    with pytest.raises(AdapterError, match=r"An adapter has the pattern .* rank_pattern") as caught:
        _ = open_adapter(folder).modules
    assert reason in str(caught.value)


def test_the_work_of_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_MOST_WORK", 20_000)
    table = Patterns([f"(((a?b?)*c?)*d?)*{number}x" for number in range(2000)])
    with pytest.raises(PatternError, match="it takes too long to match"):
        _ = [table.first(f"{'abcd' * 50}{number}") for number in range(1000)]


@pytest.mark.parametrize("value", ["2", True, 0, -1, None, [2], float("inf")])
def test_values_of_a_table_are_numbers(value: object, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"rank_pattern is .* expected an object with numbers"):
        open_adapter(adapter(tmp_path / "adapter", rank_pattern={"q_proj": value}))
