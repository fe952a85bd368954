# SPDX-License-Identifier: Apache-2.0
"""What costs much to look at is refused before it is looked at: large manifests, endless templates, absurd configs."""

import copy
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkout import TESTS
from fixtures_builds import Models
from fixtures_cli import run
from package_builder import FILES, fill

from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError, GenerationError, PackageError
from qeff_zoo.package import Package, files
from qeff_zoo.package.identity import tree_digest
from qeff_zoo.package.manifest import MANIFEST_NAME, dump, problems
from qeff_zoo.runtime.text import template_sandbox
from qeff_zoo.runtime.text.chat_template import ChatTemplate

pytestmark = pytest.mark.turns(2)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < seconds


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return fill(tmp_path / "package")


def listing(package: Package, count: int, folder: str = "") -> dict[str, Any]:
    """Make the package's manifest list that many more files."""
    manifest = copy.deepcopy(dict(package.manifest))
    more = ({**manifest["files"][0], "path": f"{folder}{number}"} for number in range(count))
    manifest["files"] += more
    manifest["tree"] = tree_digest(manifest["files"])
    return manifest


# --- manifests ------------------------------------------------------------------------------------


def test_a_manifest_lists_no_more_files_than_can_be_looked_at(package: Package) -> None:
    (package.path / MANIFEST_NAME).write_bytes(dump(listing(package, 70_000)))
    with (
        within(5),
        pytest.raises(PackageError, match=r"\$\.files has 70,007 entries, more than 10,000"),
    ):
        Package.open(package.path)


def test_looking_for_files_in_deep_folders_takes_no_longer_for_each(package: Package) -> None:
    manifest = listing(package, 5_000, "a/" * 115)
    with within(1):
        found = files.misplaced(package.path, manifest["files"])
    assert len(found) == 5_000


@pytest.mark.parametrize("wrong", [1, {"path": 1, "size": "", "digest": None, "role": []}])
def test_of_many_problems_a_hundred_are_found(package: Package, wrong: Any) -> None:
    manifest = {**package.manifest, "files": [wrong] * 9_000}
    with within(0.5):
        assert len(problems(manifest)) == 100


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (list(range(600_000)), "it has more than 500,000 values"),
        ("x" * 10_001, "it has a text of 10,001 characters, more than 10,000"),
        ({"x" * 10_001: 1}, "it has a text of 10,001 characters, more than 10,000"),
        (1 << 63, "it has an integer of more than 64 bits"),
    ],
)
def test_what_no_package_needs_is_refused_at_once(
    package: Package, value: Any, reason: str
) -> None:
    manifest = {**package.manifest, "spec": {"npi": value}}
    with within(1):
        assert problems(manifest) == [reason]


def test_the_limits_are_far_from_what_packages_have(package: Package) -> None:
    manifest = listing(package, 9_000, "qpc/a folder/with a name/")
    assert len(manifest["files"]) > 500 * len(FILES)
    with within(5):
        assert problems(manifest) == []


# --- chat templates -------------------------------------------------------------------------------

ROUNDS = "{% for i in range(99999) %}"
GROW = "{% set n = namespace(a='a', l=[1]) %}{% for i in range(60) %}"
ENDLESS = {
    "a loop": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": ROUNDS + ROUNDS + "{% endfor %}{% endfor %}",
    "a loop of nothing": ROUNDS + "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for i in [1] recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "a macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a forking macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a block": "{% block a %}{% if messages %}{{ self.a() }}{{ self.a() }}{% endif %}{% endblock %}",
    "a product": "{{ 'a' * 10**9 }}",
    "a list": "{{ ([1] * 10**9)|length }}",
    "powers": "{% set n = namespace(a=9) %}{% for i in range(99) %}{% set n.a = n.a * n.a %}{% endfor %}",
    "text joined": GROW + "{% set n.a = n.a ~ n.a %}{% endfor %}",
    "text added": GROW + "{% set n.a = n.a + n.a %}{% endfor %}",
    "lists in lists": GROW + "{% set n.l = [n.l] * 100 %}{% endfor %}{{ n.l|tojson }}",
    "slices": GROW
    + "{% endfor %}{% for i in range(99999) %}{% set n.l = n.l + [('a'*10**7)[1:]] %}{% endfor %}",
    "a set block": "{% set x %}" + ROUNDS + "{{ 'a' * 10**5 }}{% endfor %}{% endset %}",
    "words of its own": ROUNDS + "a" * 900_000 + "{% endfor %}",
    "padding": "{{ 'a'|center(10**9) }}{{ 'a'.ljust(10**9) }}",
    "a method": "{{ 'a'.ljust(10**9) }}",
    "a width": "{{ '%999999999d' % 1 }}",
    "another width": "{{ '{:999999999}'.format(1) }}",
    "a width by name": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "replacing": "{{ ('a'*10**6).replace('a', 'b'*10**6) }}",
    "joining": "{{ range(99999)|map('string')|join('b'*10**6) }}",
    "indenting": "{{ ([[1]] * 10**5)|tojson(indent=10**5) }}",
    "adding lists": "{{ ([[1]*100] * 10**5)|sum(start=[])|length }}",
    "batches": "{{ [1]|batch(10**9, 1)|list }}",
    "lipsum": "{{ lipsum(10**7) }}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "length": "a" * (2 << 20),
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.sampled(4)
def test_no_template_runs_for_ever_or_takes_all_memory(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_sandbox, "_BUDGET", 1 << 24)  # a sixteenth: tests are to be quick
    with within(10), pytest.raises(GenerationError, match="The chat template fails: "):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_long_conversations_fit_into_the_budget() -> None:
    source = (
        "{% for message in messages[0:] if message.content is string %}"
        "{% set parts = message.content.split('</think>') %}"
        "{{ '<|' ~ message.role ~ '|>' + parts[-1]|trim|replace('<|im_end|>', '< |im_end| >') }}"
        "{{ message|tojson(indent=2)|length if loop.first }}{{ '%s of %d' % (loop.index, loop.length) }}"
        "{{ ['a', 'b']|map('upper')|join(', ') }}{% if not loop.last %}{{ '-'.center(3) }}{% endif %}"
        "{% endfor %}"
    )
    messages = [{"role": "user", "content": "the quick brown fox " * 100}] * 1000  # 2 million
    text = ChatTemplate(source, {}).render(messages)
    assert text.startswith("<|user|>the quick")
    assert text.endswith("1000 of 1000A, B")
    assert len(text) > 2_000_000 - 1000


# --- configurations -------------------------------------------------------------------------------

ABSURD = [
    ("num_hidden_layers", 10**9),
    ("n_layer", 1001),
    ("num_local_experts", 10**9),
    ("num_experts_per_tok", 10**6),
    ("hidden_size", 10**12),
    ("vocab_size", 10**9),
    ("num_attention_heads", 10**9),
    ("max_position_embeddings", 10**30),
    ("rope_scaling", {"rope_type": "yarn", "factor": 10**400}),
    ("layer_sizes", [64, 10**9]),
]


@pytest.mark.parametrize(("name", "value"), ABSURD)
@pytest.mark.parametrize("command", ["plan", "build"])
def test_what_no_model_has_is_refused_before_anything_is_made_of_it(
    command: str,
    name: str,
    value: Any,
    models: Models,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = models.copy(models.llama, tmp_path / "absurd")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with within(1):
        code, _, err = run([command, str(folder)], capsys)
    assert code == 1
    assert re.search(rf"has a {name}\S* of more than [0-9,]+\. Expected", err)
    assert not home.exists()


@pytest.mark.parametrize(
    "name", ["rope_scaling", "rope_parameters", "quantization_config", "id2label", "auto_map"]
)
@pytest.mark.parametrize("value", ["yarn", [1], 5])
def test_a_part_of_a_config_that_is_no_object(
    name: str, value: Any, models: Models, tmp_path: Path
) -> None:
    folder = models.copy(models.llama, tmp_path / "odd")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(CheckpointError, match=rf"has the {name} .* Expected an object, or null"):
        open_checkpoint(str(folder))


def test_every_model_that_is_known_is_possible(tmp_path: Path) -> None:
    known = json.loads((TESTS / "full_size_configs.json").read_bytes())
    assert len(known) > 20
    for one in known:
        config = {"model_type": one["model_type"], **one["config"]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert read_config(tmp_path / "config.json")
