# SPDX-License-Identifier: Apache-2.0
"""The documentation: every page is in the navigation, every task has a page, every flag exists."""

import argparse
import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from qeff_zoo import cli, tasks
from qeff_zoo.serving.app import PATHS
from qeff_zoo.serving.page import PAGE_PATHS

ROOT = Path(__file__).parent.parent
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
        *("--confcutdir", "--junitxml"),  # of pytest
    ),
    *("--max-num-seqs", "--quantization", "--served-model-name", "--speculative-config"),
    *("--nproc-per-node", "--public_key", "--signature", "--ignore_unsigned_files"),
    *("--target_backend", "--data_format_config", "--dataset_name", "--model_type", "--name"),
    *("--faults", "--fix", "--changed", "--recipe", "--draws", "--requiring"),
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
    from documentation.models import TASKS

    assert set(TASKS) == set(tasks.NAMES)
    assert all((DOCS / guide).is_file() for _, guide in TASKS.values())


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


def test_the_page_of_the_server_has_every_path() -> None:
    page, path = (DOCS / "server.md").read_text(encoding="utf-8"), re.compile(r"`(/[^` ]*)`")
    assert {*PATHS} - {*PAGE_PATHS} - {*path.findall(page)} == set()
    rows = "".join(re.findall(r"^\| (`/.*?) \|", page, re.MULTILINE))
    assert {*path.findall(rows)} - {*PATHS} == set()


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
