# SPDX-License-Identifier: Apache-2.0
"""The list of checkpoints: a status says only what was run, evidence comes first, and the list is installed."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import jsonschema
import pytest
from checkout import ROOT
from transformers import CONFIG_MAPPING

from qeff_zoo import pipeline, registry
from qeff_zoo.contract import tasks_of
from qeff_zoo.export import architectures
from qeff_zoo.multimodal.families.audio_windows import AudioWindows
from qeff_zoo.multimodal.images import Images
from qeff_zoo.package.identity import canonical
from qeff_zoo.pipeline import checks
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Tiny, experts
from qeff_zoo.store import Store
from qeff_zoo.validation.judgement import known_models
from qeff_zoo.validation.judgement.known_models import Model

MODEL_ID = "^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["models"],
    "properties": {
        "models": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["model_id", "model_type", "architecture", "task"],
                "properties": {
                    "model_id": {"type": "string", "pattern": MODEL_ID},
                    "model_type": {"type": ["string", "null"]},
                    "architecture": {"type": "string", "pattern": "^[A-Z][A-Za-z0-9_]*$"},
                    "task": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)+$"},
                    "quant_method": {"type": "string"},
                },
            },
        }
    },
}
LLAMA = {
    "model_id": "org/llama",
    "model_type": "llama",
    "architecture": "LlamaForCausalLM",
    "task": "text-generation",
}


def declared() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((known_models.FOLDER / "declared.json").read_bytes())[
        "models"
    ]
    return found


def write(
    folder: Path,
    declared: list[dict[str, Any]],
    *evidence: dict[str, Any],
    tiny: dict[str, Any] | None = None,
) -> Path:
    (folder / "org").mkdir()
    (folder / "declared.json").write_text(json.dumps({"models": declared}))
    of_llama = known_models.tiny_evidence("llama", folder)
    of_llama.parent.mkdir()
    if tiny is not None:
        of_llama.write_text(json.dumps(tiny))
    for number, content in enumerate(evidence):
        (folder / "org" / f"{number}.json").write_text(json.dumps(content))
    return folder


def evidence(*records: tuple[str, str], **content: Any) -> dict[str, Any]:
    made = [{"level": level, "verdict": verdict} for level, verdict in records]
    given = {key: LLAMA[key] for key in ("model_id", "model_type", "task")}
    return {**given, "name": "llama", "records": made, **content}


def agreed(**change: Any) -> dict[str, Any]:
    """Return evidence that Llama's tiny models agree, as `validate llama --record` writes it."""
    tasks = {task: {"verdict": "validated"} for task in tasks_of(registry.find_recipe("llama"))}
    of = known_models.recipe_digest(registry.find_recipe("llama"))
    return {"model_type": "llama", "recipe": of, "tasks": tasks, **change}


@pytest.mark.parametrize("recipe", registry.list_recipes(), ids=lambda one: one.model_type)
def test_every_recipe_has_evidence_of_itself_as_it_is(recipe: Recipe) -> None:
    """If not: `qeff-zoo validate MODEL_TYPE --record`."""
    assert known_models.agreeing_tasks(recipe) == set(tasks_of(recipe))


def test_evidence_is_of_recipes() -> None:
    found = {path.stem for path in (known_models.FOLDER / "_tiny").iterdir()}
    assert found <= set(registry.list_model_types())


@pytest.mark.parametrize(
    ("tiny", "status"),
    [
        (agreed(), "tiny"),
        (None, "declared"),
        (agreed(recipe="of a recipe that was changed since"), "declared"),
        (agreed(tasks={"text-generation": {"verdict": "failed"}}), "declared"),
        (agreed(tasks={"text-classification": {"verdict": "validated"}}), "declared"),
    ],
    ids=["agreed", "none", "stale", "failed", "of-another-task"],
)
def test_tiny_models_count_by_what_was_run(
    tiny: dict[str, Any] | None, status: str, tmp_path: Path
) -> None:
    (found,) = known_models.list_models(write(tmp_path, [LLAMA], tiny=tiny))
    assert (found.recipe, found.status) == ("llama", status)


@pytest.mark.parametrize(
    "change",
    [
        {"rev": 99},
        {"tiny": (Tiny(config={}),)},
        {"transforms": (experts(),)},
        {"images": Images(types="tiles")},
        {"audio": AudioWindows(token="a_token")},
    ],
    ids=["rev", "tiny", "transforms", "images", "audio"],
)
def test_evidence_of_a_recipe_that_changed_is_stale(change: dict[str, Any]) -> None:
    llama = registry.find_recipe("llama")
    assert known_models.recipe_digest(replace(llama, **change)) != known_models.recipe_digest(llama)
    assert known_models.recipe_digest(
        replace(llama, special="Said better.")
    ) == known_models.recipe_digest(llama)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "agrees"),
        ({"verdict": "refused"}, "refused"),
        ({"made_of": {"target": 1}}, "agreed"),
        ({"made_of": {"exporter": 1}, "verdict": "differs"}, "differed"),
        ({"made_of": {"recipe": "of another digest"}}, "agreed"),
    ],
    ids=["now", "refused", "older target", "older exporter", "older recipe"],
)
def test_a_verdict_of_an_older_graph_is_distinguished(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    llama = registry.find_recipe("llama")
    now = known_models.made_of(llama, "qnn-htp")
    found = {"verdict": "agrees", **change, "made_of": {**now, **change.get("made_of", {})}}
    path = known_models.target_evidence("qnn-htp", tmp_path)
    path.parent.mkdir()
    path.write_text(json.dumps({"models": {f"llama-{llama.tiny[0].name}": found}}))
    assert known_models.verdict(llama, "qnn-htp", tmp_path) == message
    assert known_models.verdict(registry.find_recipe("bert"), "qnn-htp", tmp_path) == ""


def test_states_after_rejected_drafts_depend_on_the_recipe(tmp_path: Path) -> None:
    """If a model differs: put its states back, see `tests/helpers/rejecting.py`, and run `scripts/reject_drafts`."""
    known = json.loads(known_models.speculation_evidence().read_bytes())["models"]
    assert {value["verdict"] for value in known.values()} == {"agrees"}
    assert all(value["max_error"] <= value["<="] for value in known.values())
    gemma = registry.find_recipe("gemma3_text")
    assert known_models.speculation(gemma) in ("agrees", "agreed")
    path = known_models.speculation_evidence(tmp_path)
    path.write_text(json.dumps({"models": {"gemma3_text-base": {"verdict": "differs"}}}))
    assert known_models.speculation(gemma, tmp_path) == "differed"
    assert known_models.speculation(registry.find_recipe("llama"), tmp_path) == ""


def test_record_of_validate_is_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = checks.check_recipe("clip_text_model", record=True)
    folder = tmp_path / "validated_models"
    recipe = registry.find_recipe("clip_text_model")
    assert found.recorded == known_models.tiny_evidence("clip_text_model", folder).relative_to(
        tmp_path
    )
    assert known_models.agreeing_tasks(recipe, folder) == {"feature-extraction"}
    written = json.loads(found.recorded.read_bytes())["tasks"]["feature-extraction"]["models"]
    errors = written["base"]["padded_batch"]["max_relative_error"]
    assert 0 < errors["value"] <= errors["<="] < errors["canary"]


def test_the_record_of_our_own_checkpoint_is_of_what_is_built_now(tmp_path: Path) -> None:
    """If it is not: build examples/tiny-llama, and `qeff-zoo validate` that package with --record."""
    (record,) = json.loads((known_models.FOLDER / "local" / "tiny-llama.json").read_bytes())[
        "records"
    ]
    source = str(ROOT / "examples" / "tiny-llama")
    _, plan = pipeline.make_plan(source, Request(), store=Store(tmp_path))
    versions = {"toolchain": record["plan"]["toolchain"]}  # may be others here
    assert record["plan"] == json.loads(canonical(plan.spec)) | versions


def test_the_file_is_well_formed() -> None:
    jsonschema.validate({"models": declared()}, SCHEMA)
    names = [entry["model_id"] for entry in declared()]
    assert names == sorted(names, key=str.lower)
    assert not [name for name, count in Counter(names).items() if count > 1]


def test_validated_checkpoint_is_not_declared() -> None:
    """Remove a line from declared.json when `validate --record` has written its file."""
    proved = {
        json.loads(file.read_bytes())["model_id"]
        for file in known_models.FOLDER.glob("[!_]*/*.json")
    }
    assert not proved & {entry["model_id"] for entry in declared()}


def test_every_declared_model_is_listed_once() -> None:
    listed = Counter(model.model_id for model in known_models.list_models())
    assert set(listed.values()) == {1}
    assert {entry["model_id"] for entry in declared()} < set(listed)
    assert "tiny-llama" in listed


def test_only_architectures_of_transformers_or_of_ours_have_recipes() -> None:
    ours = {path.stem for path in Path(architectures.__file__).parent.glob("[!_]*.py")}
    known = {registry.file_name(name) for name in CONFIG_MAPPING} | ours
    known |= {name for name in dir(diffusers) if name.endswith("Pipeline")}
    found = known_models.list_models()
    assert all(model.status in known_models.STATUSES for model in found)
    assert {model.recipe for model in found if model.recipe} <= known
    assert all((model.recipe is None) == (model.status == "declared") for model in found)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "tiny"),
        ({"model_type": "no-such-type"}, "declared"),
        ({"model_type": None}, "declared"),
        ({"architecture": "LlamaForQuestionAnswering"}, "declared"),
        ({"task": "token-classification"}, "declared"),
        ({"quant_method": "no-such-method"}, "declared"),
        ({"architecture": "LlamaForSequenceClassification", "task": "text-classification"}, "tiny"),
    ],
    ids=str,
)
def test_a_declared_model_is_as_far_as_its_recipe(
    change: dict[str, Any], status: str, tmp_path: Path
) -> None:
    (found,) = known_models.list_models(write(tmp_path, [{**LLAMA, **change}], tiny=agreed()))
    assert found.status == status
    assert found.recipe == ("llama" if status == "tiny" else None)


@pytest.mark.parametrize(
    ("records", "status"),
    [
        ([("checkpoint", "validated")], "checkpoint"),
        ([("checkpoint", "validated"), ("device", "validated")], "device"),
        ([("checkpoint", "validated"), ("device", "failed")], "checkpoint"),
        ([("checkpoint", "failed")], "failed"),
    ],
    ids=str,
)
def test_evidence_records_what_was_run(
    records: list[tuple[str, str]], status: str, tmp_path: Path
) -> None:
    found = known_models.list_models(write(tmp_path, [LLAMA], evidence(*records)))
    expected = Model(
        model_id="org/llama",
        model_type="llama",
        recipe="llama",
        task="text-generation",
        status=status,
    )
    assert found == [expected]


def test_a_folder_goes_by_its_name(tmp_path: Path) -> None:
    local = evidence(("checkpoint", "validated"), model_id=None, name="mine", model_type="gone")
    first, second = known_models.list_models(write(tmp_path, [LLAMA], local))
    assert (first.model_id, first.recipe, first.status) == ("mine", None, "checkpoint")
    assert second.model_id == "org/llama"


def test_the_list_is_installed_and_light(tmp_path: Path) -> None:
    """A wheel has the recipes and the checkpoints; listing them imports no framework and nothing of the checkout."""
    source, unpacked = tmp_path / "source", tmp_path / "unpacked"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("qeff_zoo", "recipes", "validated_models"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-compile"]
    options += ["--target", str(unpacked)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    code = (
        "import sys, qeff_zoo; from qeff_zoo import cli; cli.main(['list', '--models', '--json']);"
        f"assert qeff_zoo.__file__.startswith({str(unpacked)!r}), qeff_zoo.__file__;"
        "heavy = {'torch', 'transformers', 'numpy', 'onnx', 'onnxruntime'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    # -I: neither this folder nor PYTHONPATH; the target comes before an editable install.
    code = f"import sys; sys.path.insert(0, {str(unpacked)!r}); {code}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {entry["model_id"] for entry in declared()} < {
        model["model_id"] for model in json.loads(done.stdout)
    }
