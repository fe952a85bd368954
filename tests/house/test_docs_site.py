# SPDX-License-Identifier: Apache-2.0
"""The documentation: every page is in the navigation, every task has a page, every flag exists."""

import argparse
import importlib
import inspect
import json
import re
import runpy
import sys

import pytest
from checkout import ROOT

from qeff_zoo import cli, contract
from qeff_zoo.serving.server.app import known_paths
from qeff_zoo.serving.server.page import PAGE_PATHS

DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
#: Flags of other programs: vllm-qaic, torchrun, model_signing, the QNN SDK, and scripts of this repository.
FOREIGN = {
    *(
        "--additional-config",
        "--kv-cache-dtype",
        "--long-prefill-token-threshold",
        "--max-model-len",
        *("--head", "--port", "--resources"),  # of `ray start`
        *("--clients", "--ggml", "--seconds"),  # of benchmarks
        *("--confcutdir", "--junitxml"),  # of pytest
        *("--no-cache-dir", "--uid"),  # of pip and useradd
        *("--memory", "--pids-limit", "--read-only", "--rm", "--tmpfs"),  # of podman
    ),
    *("--max-num-seqs", "--quantization", "--served-model-name", "--speculative-config"),
    *("--nproc-per-node", "--public_key", "--signature", "--ignore_unsigned_files"),
    *("--target_backend", "--data_format_config", "--dataset_name", "--model_type", "--name"),
    *("--faults", "--fix", "--changed", "--recipe", "--draws", "--requiring"),
    "--index-url",  # of pip
}
CLOUD = ("infer", "export", "compile", "execute", "finetune")
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert [page for page in sorted(pages) if f"{page}\n" not in NAVIGATION] == []


def test_every_task_has_a_page_and_a_guide() -> None:
    tasks = [contract.find(name) for name in contract.NAMES]
    assert all((DOCS / "models" / f"{task.name}.md").is_file() for task in tasks)
    assert all((DOCS / task.guide).is_file() for task in tasks)
    assert len({task.does for task in tasks}) == len(tasks)


def flags_of(line: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", line))


def test_every_flag_of_a_page_exists() -> None:
    from documentation.reference import commands

    known = {
        name: {flag for action in parser._actions for flag in action.option_strings}
        for name, parser in commands(cli.parser())
    }
    modules = [importlib.import_module(f"qeff_zoo.qefficient.cloud.{name}") for name in CLOUD]
    parsers = [module._parser() for module in modules if hasattr(module, "_parser")]
    actions = [action for parser in parsers for action in parser._actions]
    every = FOREIGN.union(*known.values(), *(action.option_strings for action in actions))
    wrong = []
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            wrong += [f"{page.name}: {flag}" for flag in flags_of(line) - every]
            command = line.removeprefix("$ ").partition(" # ")[0]
            names = [name for name in known if f"{command} ".startswith(f"{name} ")]
            for name in names:
                wrong += [f"{page.name}: {name} {flag}" for flag in flags_of(command) - known[name]]
    assert sorted(wrong) == []


def test_the_page_of_options_has_every_option() -> None:
    from documentation.reference import options

    page = options()
    for action in cli.parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, parser in action.choices.items():
                section = page.partition(f"## qeff-zoo {name}")[2]
                shown = (one for one in parser._actions if one.help != argparse.SUPPRESS)
                flags = {flag for one in shown for flag in one.option_strings} - {"-h", "--help"}
                assert [flag for flag in sorted(flags) if f"`{flag}" not in section] == []
    assert "## qeff-zoo cache gc\n" in page


@pytest.mark.parametrize("task", contract.NAMES)
def test_the_reference_of_sessions_has_the_arguments_of_every_method(task: str) -> None:
    from documentation.sessions import VERBS

    session = contract.find(task).session()
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    (section,) = (part for part in page.split("\n### ") if f"\n`{session.__name__}`: " in part)
    assert task in section.partition("\n")[0].split(", ")
    methods = [verb for verb in VERBS if hasattr(session, verb)]
    assert methods
    assert [verb for verb in methods if f"`{verb}(" not in section] == []
    own = [getattr(session, verb) for verb in methods if f"`{verb}(" in section]
    missing = {
        name
        for method in own
        for name, parameter in list(inspect.signature(method).parameters.items())[1:]
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and f"| `{name}` |" not in page
    }
    assert not missing


def test_the_table_of_families_has_every_family() -> None:
    page = (DOCS / "adding-vision-language-models.md").read_text(encoding="utf-8")
    files = (ROOT / "qeff_zoo" / "multimodal" / "families").glob("[a-z]*.py")
    modules = {f"`multimodal.families.{path.stem}`" for path in files}
    assert sorted(module for module in modules if module not in page) == []


def test_the_page_of_the_server_has_every_path() -> None:
    page, path = (DOCS / "server.md").read_text(encoding="utf-8"), re.compile(r"`(/[^` ]*)`")
    assert known_paths() - {*PAGE_PATHS} - {*path.findall(page)} == set()
    rows = "".join(re.findall(r"^\| (`/.*?) \|", page, re.MULTILINE))
    named = {of.partition("/{")[0] for of in path.findall(rows)}
    assert named - known_paths() == set()


def test_the_page_of_the_manifest_describes_every_field() -> None:
    from documentation.reference import SCHEMA, fields, manifest

    page = manifest()
    schema = json.loads(SCHEMA.read_bytes())
    required = schema["required"]
    for part in (schema, json.loads(SCHEMA.with_name("prepared.schema.json").read_bytes())):
        described = {name: text for name, _, text in fields(part, part, "")}
        assert [name for name, text in described.items() if not text.strip("`; ")] == []
        assert not [
            name for name, text in described.items() if text.startswith("`")
        ]  # values alone
    assert [name for name in required if f"\n| `{name}` |" not in page] == []
    assert "| `programs[].role` |" in page


def test_a_link_out_of_the_documentation_becomes_its_text() -> None:
    pytest.importorskip("mkdocs", reason="the extra docs")
    site = runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))

    class Files:
        def get_file_from_path(self, path: str) -> object:
            return path if path in ("index.md", "hub.md", "models.md") else None

    class Page:
        class file:  # noqa: N801
            src_uri = "models/x.md"

    text = "[a](../../README.md#b) [c](../hub.md) [d](../../LICENSE) [e](https://x.y/z) ```[f](../../README.md)```"
    led = site["on_page_markdown"](text, page=Page, config=None, files=Files())
    assert (
        led == "[a](../index.md#b) [c](../hub.md) d [e](https://x.y/z) ```[f](../../README.md)```"
    )
    assert "mkdocs" in sys.modules
