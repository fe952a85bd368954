# SPDX-License-Identifier: Apache-2.0
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from package_builder import FILES, check, draft, fill

from qeff_zoo.cli.description import describe
from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package, write_manifest
from qeff_zoo.package import manifest as manifests
from qeff_zoo.package.identity import tree_digest
from qeff_zoo.terminal.printing import human_size

Json = dict[str, Any]
SCHEMA = json.loads(manifests.SCHEMA.read_text())


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return fill(tmp_path / "package")


@pytest.fixture(scope="session")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return dict(fill(tmp_path_factory.mktemp("valid")).manifest)


def rewrite(package: Package, change: Callable[[Json], None]) -> None:
    """Tamper with a manifest, as someone would who knows to repair the tree digest."""
    manifest = copy.deepcopy(dict(package.manifest))
    change(manifest)
    manifest["tree"] = tree_digest(manifest["files"])
    (package.path / "manifest.json").write_text(json.dumps(manifest))


# --- opening and reading -------------------------------------------------------------------------


def test_package_describes_itself(package: Package) -> None:
    opened = Package.open(package.path)
    assert opened == package
    assert (opened.name, opened.task, opened.model_type) == ("org/tiny", "text-generation", "llama")
    assert (opened.target, opened.validated) == ("ort", "checkpoint")
    assert (
        opened.size == sum(map(len, FILES.values())) + opened.file("specializations").stat().st_size
    )
    assert opened.verify() == []


def test_package_can_be_moved(package: Package, tmp_path: Path, monkeypatch: Any) -> None:
    package.path.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert Package.open("moved").path == tmp_path / "moved"


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        ("graph", "model.onnx"),
        ("weights", "model.onnx.data"),
        ("decoder", "model.onnx"),
        ("evidence/logits.json", "evidence/logits.json"),
        ("tokenizer", "tokenizer.json"),
        ("license", "LICENSE"),
    ],
)
def test_files_are_found_by_path_and_role(package: Package, requested: str, found: str) -> None:
    assert package.file(requested) == package.path / found


def test_ambiguous_and_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    package = fill(tmp_path)
    with pytest.raises(PackageError, match=r"2 files \(tokenizer.json, tokenizer_config.json\)"):
        package.file("tokenizer")
    with pytest.raises(PackageError, match=r"no file for 'vision_encoder'; expected one\. Give"):
        package.file("vision_encoder")


def test_specializations_are_written_in_the_named_format(package: Package) -> None:
    content = json.loads(package.file("specializations").read_text())
    assert content == {
        "specializations": [
            {
                "name": "Prefill",
                "symbols": {"batch_size": "1", "seq_len": "128", "ctx_len": "4096"},
            },
            {"name": "Decode", "symbols": {"batch_size": "1", "seq_len": "1", "ctx_len": "4096"}},
        ]
    }


def test_opening_reads_no_weights_and_imports_no_heavy_library(package: Package) -> None:
    package.file("weights").chmod(0)
    code = (
        "import sys; from qeff_zoo.package import Package; Package.open(sys.argv[1]);"
        "print(sorted({'torch', 'transformers', 'numpy', 'tabulate'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(package.path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


# --- writing -------------------------------------------------------------------------------------


def test_known_digests_are_not_computed_again(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    (tmp_path / "weights.bin").write_bytes(b"12345")
    package = write_manifest(tmp_path, draft(), {"weights.bin": (5, "b" * 64)})
    entry = next(file for file in package.manifest["files"] if file["path"] == "weights.bin")
    assert entry == {
        "path": "weights.bin",
        "size": 5,
        "digest": "sha256:" + "b" * 64,
        "role": "weights",
    }
    assert "weights.bin" in package.verify()[0]


def test_known_sizes_must_be_those_on_disk(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    with pytest.raises(PackageError, match=r"'model\.onnx' has 5 bytes, expected 6"):
        write_manifest(tmp_path, draft(), {"model.onnx": (6, "b" * 64)})
    assert not (tmp_path / "manifest.json").exists()


def test_no_manifest_is_written_that_would_be_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"\$\.task 3 is not of type 'string'"):
        fill(tmp_path, task=3)
    assert not (tmp_path / "manifest.json").exists()


def test_disagreeing_specializations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "specializations.json").write_text('{"specializations": []}')
    with pytest.raises(PackageError, match="disagrees with the manifest"):
        fill(tmp_path)


def test_spec_is_stored_in_canonical_form(tmp_path: Path) -> None:
    spec = {"ctx_len": 4096.0, "npi": None, "shapes": (1, 2)}
    assert fill(tmp_path, spec=spec).manifest["spec"] == {"ctx_len": 4096, "shapes": [1, 2]}


def test_validation_is_replaced_in_place(package: Package) -> None:
    record = check(level="device", note="AI 100 Ultra")
    updated = package.with_validation([record], "device")
    assert Package.open(package.path) == updated
    assert updated.validated == "device"
    assert updated.verify() == []
    with pytest.raises(PackageError, match="QZ-M009"):
        package.with_validation([record], "task")
    assert Package.open(package.path) == updated


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_flipped_byte_is_found(package: Package, name: str) -> None:
    path = package.path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    problems = Package.open(package.path).verify()
    assert len(problems) == 1
    assert problems[0].startswith(f"'{name}' has digest sha256:")


def test_verify_reports_all_problems_and_progress(package: Package) -> None:
    done: list[int] = []
    assert package.verify(done.append) == []
    assert sum(done) == package.size
    (package.path / "model.onnx").write_bytes(b"other")
    (package.path / "model.onnx.data").unlink()
    (package.path / "evidence" / "more.txt").write_text("x")
    (package.path / "link").symlink_to("evidence")
    problems = package.verify()
    assert [line.split("'")[1] for line in problems] == [
        "model.onnx.data",
        "model.onnx",
        "evidence/more.txt",
        "link",
    ]


def _remove(folder: Path) -> None:
    (folder / "model.onnx").unlink()


def _truncate(folder: Path) -> None:
    os.truncate(folder / "model.onnx.data", 100)


def _link_file(folder: Path) -> None:
    (folder / "model.onnx").rename(folder.parent / "outside")
    (folder / "model.onnx").symlink_to("../outside")


def _link_folder(folder: Path) -> None:
    (folder / "evidence").rename(folder.parent / "outside")
    (folder / "evidence").symlink_to("../outside")


def _make_folder(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").mkdir()


def _make_pipe(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")


def _link_manifest(folder: Path) -> None:
    (folder / "manifest.json").rename(folder.parent / "outside")
    (folder / "manifest.json").symlink_to("../outside")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_remove, "'model.onnx' is missing, or not a regular file"),
        (_truncate, "'model.onnx.data' has 100 bytes, expected 16384"),
        (_link_file, "'model.onnx' is missing, or not a regular file"),
        (_link_folder, "'evidence/logits.json' is missing, or lies behind a symbolic link"),
        (_make_folder, "'model.onnx' is missing, or not a regular file"),
        (_make_pipe, "'model.onnx' is missing, or not a regular file"),
        (_link_manifest, "manifest.json is not a regular file"),
    ],
)
def test_damage_is_refused(package: Package, damage: Callable[[Path], None], reason: str) -> None:
    damage(package.path)
    with pytest.raises(PackageError, match=rf"is damaged: {reason}.* Build or pull it again\."):
        Package.open(package.path)


def test_a_linked_folder_is_fine(package: Package, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(package.path)
    assert Package.open(tmp_path / "link").verify() == []


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[]", "a list, not an object"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"schema": NaN}', "NaN is not JSON"),
        (b'{"schema": 1e999}', "cannot be read"),
        (b'{"schema": "a", "schema": "b"}', "one key twice"),
        (b'{"schema": "\\ud800"}', "cannot be read"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "cannot be read"),
    ],
)
def test_bad_manifests_are_refused(package: Package, raw: bytes, reason: str) -> None:
    (package.path / "manifest.json").write_bytes(raw)
    with pytest.raises(PackageError, match=reason):
        Package.open(package.path)


def test_deep_nesting_within_the_parser_s_limit_is_refused(package: Package) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    manifest = {**package.manifest, "spec": deep}
    assert manifests.problems(manifest) == ["it is nested too deeply"]


def test_huge_manifests_are_not_read(package: Package) -> None:
    os.truncate(package.path / "manifest.json", manifests.MANIFEST_LIMIT + 1)
    with pytest.raises(PackageError, match="67108865 bytes, more than 67108864"):
        Package.open(package.path)


def test_unknown_schema_versions_are_refused(package: Package) -> None:
    rewrite(package, lambda manifest: manifest.update(schema="qeff-package/1"))
    with pytest.raises(PackageError, match=r"'qeff-package/1'; expected 'qeff-package/2'\. Build"):
        Package.open(package.path)


@pytest.mark.parametrize("there", ["absent", "empty", "file"])
def test_invalid_package_folder_is_refused(tmp_path: Path, there: str) -> None:
    path = tmp_path / "x"
    if there == "empty":
        path.mkdir()
    elif there == "file":
        path.write_text("x")
    with pytest.raises(PackageError, match=r"'.*/x' is not a package: .*; expected .* Check"):
        Package.open(path)


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/etc/passwd",
        "a/../../outside",
        "~/x",
        "C:/x",
        "a\\..\\b",
        "./a",
        "a//b",
        "a\n",
    ],
)
def test_paths_that_leave_the_package_are_refused(package: Package, path: str) -> None:
    (package.path.parent / "outside").write_bytes(b"graph")

    def move(manifest: Json) -> None:
        manifest["files"][3]["path"] = path

    rewrite(package, move)
    with pytest.raises(PackageError, match="QZ-M004"):
        Package.open(package.path)


# --- schema and rules ----------------------------------------------------------------------------


def _files(manifest: Json, **changes: Any) -> None:
    manifest["files"].append({**manifest["files"][0], **changes})
    manifest["tree"] = tree_digest(manifest["files"])


def _set(*path: Any, to: Any) -> Callable[[Json], None]:
    def change(manifest: Json) -> None:
        value: Any = manifest
        for part in path[:-1]:
            value = value[part]
        value[path[-1]] = to

    return change


FAULT = {"fault": "a stale row seen", "value": 0.5, "noticed": True}
BREAKS: list[tuple[str, Callable[[Json], None]]] = [
    ("QZ-M001", _set("build_key", to="qz1-" + "0" * 64)),
    ("QZ-M001", _set("spec", "shape", "ctx_len", to=8192)),
    ("QZ-M001", _set("spec", "npi", to="/home/a/npi.yaml")),
    ("QZ-M002", _set("programs", 0, "program_key", to="qp1-" + "0" * 64)),
    ("QZ-M002", _set("programs", 0, "graph", "digest", to="sha256:" + "0" * 64)),
    ("QZ-M002", _set("programs", 0, "compiled_from", "flags", to={"npi": "~/npi.yaml"})),
    ("QZ-M003", _set("tree", to="sha256:" + "0" * 64)),
    ("QZ-M003", _set("files", 0, "size", to=2**60)),
    ("QZ-M003", _set("files", 0, "digest", to="sha256:" + "0" * 64)),
    ("QZ-M004", lambda manifest: _files(manifest, path="../x")),
    ("QZ-M004", lambda manifest: _files(manifest, path="a\x00b")),
    ("QZ-M005", lambda manifest: _files(manifest, path="MODEL.onnx")),
    ("QZ-M005", lambda manifest: _files(manifest, path="model.onnx")),
    ("QZ-M005", lambda manifest: _files(manifest, path="Manifest.json")),
    ("QZ-M005", lambda manifest: _files(manifest, path="model.onnx/x")),
    ("QZ-M016", lambda manifest: _files(manifest, path="manifest.json.sigstore")),
    ("QZ-M016", lambda manifest: _files(manifest, path=".Manifest.JSON.0123456789abcdef")),
    ("QZ-M006", _set("programs", 0, "path", to="qpc")),
    ("QZ-M007", _set("validation", 0, "passed", to=False)),
    ("QZ-M007", _set("validation", 0, "value", to=None)),
    ("QZ-M008", _set("validation", 0, "canary", "value", to=0.995)),
    ("QZ-M009", _set("validated", to="device")),
    ("QZ-M009", _set("validation", to=[check(), check(value=0.5, passed=False)])),
    ("QZ-M010", _set("validation", 0, "against", "revision", to="main")),
    ("QZ-M011", _set("programs", 0, "inputs", 0, "shape", to=["batch", 1])),
    ("QZ-M012", _set("spec", "npi", to=None)),
    ("QZ-M012", _set("spec", "extra", to=4096.0)),
    ("QZ-M011", _set("programs", 0, "states", 0, "axes", to=["batch", 1])),
    ("QZ-M013", _set("programs", 0, "specializations", 1, "name", to="Prefill")),
    ("QZ-M014", lambda manifest: manifest["programs"].append(manifest["programs"][0])),
    ("QZ-M015", lambda manifest: manifest["validation"][0].pop("canary")),
    ("QZ-M017", _set("validation", 0, "faults", to=[{**FAULT, "noticed": False}])),
    ("QZ-M017", _set("validation", 0, "faults", to=[{**FAULT, "value": 1}])),
]


@pytest.mark.parametrize(
    ("rule", "change"), BREAKS, ids=[f"{n}-{r}" for n, (r, _) in enumerate(BREAKS)]
)
def test_each_rule_fires(valid: Json, rule: str, change: Callable[[Json], None]) -> None:
    manifest = copy.deepcopy(valid)
    assert manifests.problems(manifest) == []
    change(manifest)
    problems = manifests.problems(manifest)
    assert {line.split(":")[0] for line in problems} >= {rule}
    assert len(problems) <= 2


def test_every_rule_has_a_test() -> None:
    assert {rule for rule, _ in BREAKS} == set(manifests.RULES)


def test_faults_and_costs_are_kept(valid: Json) -> None:
    manifest = copy.deepcopy(valid)
    cost = {"metric": "kl_divergence", "mean": 0.002, "error": 0.0001, "positions": 52}
    manifest["validation"][0]["faults"] = [FAULT, {**FAULT, "value": 0.999, "noticed": False}]
    manifest["costs"] = {"weights": {**cost, "perplexity_ratio": 1.01}, "activations": cost}
    assert manifests.problems(manifest) == []


def test_case_folding_does_not_refuse_distinct_names(valid: Json) -> None:
    manifest = copy.deepcopy(valid)
    _files(manifest, path="qpc/a b-é.bin")
    assert manifests.problems(manifest) == []


def test_a_canary_that_gives_nan_has_failed(valid: Json) -> None:
    manifest = copy.deepcopy(valid)
    manifest["validation"][0]["canary"]["value"] = None
    assert manifests.problems(manifest) == []


def test_schema_is_closed_and_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    open_objects = []

    def walk(node: Any, where: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and node.get("additionalProperties") is not False:
                open_objects.append(where.rpartition(".")[2])
            for key, item in node.items():
                walk(item, f"{where}.{key}")

    walk(SCHEMA, "$")
    # Maps whose keys are data, not fields.
    maps = [
        "ways",
        "additionalProperties",  # of `ways`: counts by code
        "needs",
        "spec",
        "sources",
        "source",
        "recipe",
        "media",
        "named",
        "quantization",
        "shape",
        "toolchain",
        "why",
        "left_out",
        "flags",
        "compiler",
        "symbols",
        "seconds",
        "settings",
        "told",
    ]
    assert sorted(open_objects) == sorted(maps)


def test_dollar_is_the_end_of_the_text(valid: Json) -> None:
    manifest = {**valid, "build_key": valid["build_key"] + "\n"}
    assert any("build_key" in problem for problem in manifests.problems(manifest))


# --- describing ----------------------------------------------------------------------------------


def test_description_is_complete(package: Package) -> None:
    text = describe(package)
    for part in (
        "org/tiny: text-generation (llama) for target ort",
        package.build_key,
        "int4, 12 tensors",
        "onnxruntime >=1.31",
        "Prefill  1             128        4096",
        "input_ids int64[batch_size, seq_len]\n    outputs: logits",
        "retained states: 1 growing",
        "shape.ctx_len   4096     recipe",
        "model.onnx.data       weights          16.4 kB",
        "Validated: checkpoint",
        ">= 0.99 (noise-floor)  yes       swap two heads: detected at 0.03",
        f"qeff-zoo run {package.path} --prompt",
    ):
        assert part in text


def test_description_of_choices_that_name_no_place_in_the_plan(tmp_path: Path) -> None:
    text = describe(fill(tmp_path, why={"ctx_len": "user", "target": "default"}))
    assert "Choices\n  field    set by\n  ctx_len  user\n  target   default\n" in text


def test_description_of_what_was_not_validated(tmp_path: Path) -> None:
    assert "Validation: none." in describe(fill(tmp_path, validated="none", validation=[]))


def test_description_cannot_steer_a_terminal(tmp_path: Path) -> None:
    text = describe(fill(tmp_path, name="evil\x1b[2J\r", license=None))
    assert "\x1b" not in text
    assert "\r" not in text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (4_820_000_000, "4.82 GB"),
        (7 * 10**12, "7 TB"),
    ],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert human_size(size) == text
