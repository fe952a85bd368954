# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: every page is in the navigation, every task has a page, every command its options."""

import argparse
import json
import runpy
import sys
from pathlib import Path

import pytest

from qeff_zoo import tasks
from qeff_zoo.cli import arguments

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
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


def test_the_page_of_options_has_every_option() -> None:
    from documentation.reference import options

    page = options()
    for action in arguments.parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, parser in action.choices.items():
                section = page.partition(f"## qeff-zoo {name}")[2]
                shown = (one for one in parser._actions if one.help != argparse.SUPPRESS)
                flags = {flag for one in shown for flag in one.option_strings} - {"-h", "--help"}
                assert [flag for flag in sorted(flags) if f"`{flag}" not in section] == []
    assert "## qeff-zoo cache gc\n" in page


def test_the_page_of_the_manifest_has_every_required_field() -> None:
    from documentation.reference import SCHEMA, manifest

    page = manifest()
    required = json.loads(SCHEMA.read_bytes())["required"]
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
