# SPDX-License-Identifier: Apache-2.0
"""The site of a zoo: its pages in Chromium, its data, names of strangers' packages, and its folder."""

import ast
import copy
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checkout import ROOT
from fixtures_browser import Tab, opened_tab
from jsonschema import Draft202012Validator
from package_builder import SPEC, check, draft, fill
from remote_builder import index_in, remote
from static_server import served

import qeff_zoo
from qeff_zoo import bench, cli, registry
from qeff_zoo.errors import PackageError, PublishError, RemoteError, ServingError
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import VALIDATED
from qeff_zoo.package.memory import needed_memory
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.site import addresses, builder, evidence, folder, pages, plots, reports, words
from qeff_zoo.site import gather as gathering
from qeff_zoo.site.content import LEVELS, Model, Speed, Zoo
from qeff_zoo.site.gather import gather
from qeff_zoo.site.preview import serve
from qeff_zoo.validation.judgement.known_models import FOLDER

pytestmark = pytest.mark.turns(2)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCRIPT = "acme/<script>alert(1)</script>"
QUOTES = 'it\'s "$(reboot)" `id` & {flags} ]]> \u202egpj.exe'
OUTSIDE = "../../../../etc/cron.d/owned"
HOSTILE = (
    SCRIPT,
    QUOTES,
    OUTSIDE,
    "--help",
    "{{ 7 * 7 }}",
    "</script><img src=x onerror=alert(1)>",
)
LICENSE = "mit<b onclick=alert(1)>"
REASON = "Wrong after 2,048 tokens <img src=x onerror=alert(1)>"
KNOWN_BAD = "Qwen/Qwen3-0.6B"


def package(
    place: Path, model: str, *, weights: str = "int8", ctx_len: int = 4096, **changes: Any
) -> Package:
    spec = copy.deepcopy(SPEC)
    spec["sources"]["model"]["model_id"] = model
    spec["shape"]["ctx_len"] = ctx_len
    spec |= {
        "quantization": {"weights": weights, "method": "none"},
        "task": {"name": "text-generation"},
    }
    spec["target"] = {"name": "ort"}
    checks = [
        check(stage=stage, metric="max_relative_error", op="<=", value=3e-5, threshold=3e-4,
              canary={"mutation": "swap two heads", "value": 0.02, "failed": True}, positions=40)
        for stage in ("prefill", "decode")
    ]  # fmt: skip
    return fill(
        place,
        name=model,
        spec=spec,
        weights={"storage": weights, "tensors": 12},
        validation=checks,
        **changes,
    )


@pytest.fixture(scope="module")
def zoo_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a remote with packages of models with all kinds of names; one has a notice."""
    root = tmp_path_factory.mktemp("remote")
    made = [
        package(root / f"p{number}", "org/tiny", weights=weights, ctx_len=ctx_len)
        for number, (weights, ctx_len) in enumerate(
            (w, c) for w in ("int8", "int4") for c in (2048, 4096)
        )
    ]
    bad = package(root / "bad", KNOWN_BAD)
    hostile = [
        package(root / f"h{number}", name, license=LICENSE) for number, name in enumerate(HOSTILE)
    ]
    files = remote(*made, bad, *hostile)
    index = index_in(files)
    path = next(entry.path for entry in index.entries if entry.model == KNOWN_BAD)
    index = index.with_notice(path, Notice("known_bad", REASON))
    for name, content in remote(*made, bad, *hostile, index=index).items():
        file = root / "remote" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return (root / "remote").as_uri()


@pytest.fixture(scope="module")
def zoo(zoo_url: str, tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(tmp_path_factory.mktemp("home")))
        return gather([zoo_url], title="Zoo of <tests>")


@pytest.fixture(scope="module")
def site(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("web") / "site"
    folder.write(zoo, place)
    return place


ENTRY = Entry(
    path="packages/p/0123456789abcdef", manifest="0" * 64, model="org/tiny", model_type="llama", revision=None, size=1,
    finished="2026-11-20T10:00:00Z", validated="checkpoint", signed=False, axes={"target": "ort"}, needs={}, tested={},
)  # fmt: skip


def model(zoo: Zoo, name: str) -> Model:
    return next(one for one in zoo.models if one.name == name)


# --- content -----------------------------------------------------------------------------------------------------


def test_cells_name_proof_and_means(zoo: Zoo) -> None:
    cells = {cell.target: cell for cell in model(zoo, "org/tiny").cells}
    assert (cells["ort"].state, cells["ort"].level) == ("proved", "checkpoint")
    assert (
        "largest error 3e-05 of the outputs' spread at 80 positions, 0.0003 allowed"
        in cells["ort"].how
    )
    assert "transformers 5.23.0" in cells["ort"].how
    assert "2026-11-20" in cells["ort"].how
    # Its own package has none there; the tiny models of its architecture do.
    assert (cells["qnn-htp"].state, cells["qnn-htp"].level) == ("proved", "tiny")
    assert (cells["qaic"].state, cells["qaic"].level) == ("absent", "none")


def test_a_notice_makes_a_package_red(zoo: Zoo) -> None:
    one = model(zoo, KNOWN_BAD)
    assert one.cells[0].state == "red"
    assert REASON in one.cells[0].red[0]
    assert [variant.usable for variant in one.variants] == [False]


def test_failures_of_architectures_are_shown(zoo: Zoo) -> None:
    found = {architecture.name: architecture.cells[2] for architecture in zoo.architectures}
    evidence = json.loads((FOLDER / "_targets" / "qnn-htp.json").read_bytes())["models"]
    worse = {
        name.rpartition("-")[0] for name, value in evidence.items() if value["verdict"] != "agrees"
    }
    assert {name for name, cell in found.items() if cell.state == "red"} == worse
    assert all(found[name].red for name in worse)


def test_memory_includes_weights_and_all_states(zoo: Zoo) -> None:
    (one, *_) = (
        variant for variant in model(zoo, "org/tiny").variants if variant.context == "4096"
    )
    # The graph, the weights, and one layer of states of 4,096 positions.
    assert one.memory == 5 + 16384 + 2 * 4096 * 8 * 4
    assert one.sizes == "--prefill-seq-len 128 --ctx-len 4096 --batch-size 1"


def test_the_levels_of_the_data_are_those_of_packages() -> None:
    schema = json.loads(pages.SCHEMA.read_bytes())
    assert schema["$defs"]["level"]["enum"] == [*LEVELS] == [*VALIDATED]


def test_losses_are_graded_in_words() -> None:
    cost = {"metric": "kl_divergence", "mean": 0.46, "error": 0.02, "perplexity_ratio": 1.49}
    (output,) = words.costs({"weights": cost})
    assert output == (
        "Rounding the weights costs 0.46 nats per token on average (large: expect worse results); perplexity is 1.49 "
        "times the unrounded one."
    )
    (output,) = words.measured({"words": 152, "wrong": 12, "reference": 4})
    assert (
        output == "12 of 152 transcribed words are wrong; Hugging Face's model has 4 wrong words."
    )


# --- builds that failed ------------------------------------------------------------------------------------------


def report(place: Path, *cells: dict[str, Any], **changes: Any) -> Path:
    """Write the report of a farm whose packages failed."""
    plain = {
        "model": "org/tiny", "variant": "cpu", "options": {"weights": "int8"}, "model_type": "llama", "target": "qaic",
        "build_key": f"qz1-{44:064x}", "remote": None, "state": "red", "why": "qaic-compile failed.",
    }  # fmt: skip
    content = {"schema": reports.SCHEMA_ID, "finished": "2026-11-27T19:00:00Z", **changes}
    file = place / "report.json"
    file.write_text(json.dumps({**content, "cells": [{**plain, **cell} for cell in cells]}))
    return file


@pytest.mark.usefixtures("no_models")
def test_builds_that_failed_are_red_with_their_reason(
    zoo_url: str, zoo: Zoo, tmp_path: Path, home: Path
) -> None:
    (there, *_) = model(zoo, "org/tiny").variants
    fixed = {"target": "ort", "build_key": f"qz1-{there.key}{0:048x}"}
    file = report(
        tmp_path,
        {"why": "<img src=x onerror=alert(1)> \u202e failed"},
        {"model": "new", "target": "", "build_key": "", "model_type": "", "why": "No config.json."},
        {**fixed, "why": "Built since then."},
        {"state": "published", "why": ""},
    )
    found = gather([zoo_url], reports=[file])
    cells = {cell.target: cell for cell in model(found, "org/tiny").cells}
    assert cells["ort"].red == ()  # the remote has it by now
    assert (cells["qaic"].state, cells["qaic"].level) == ("red", "none")
    assert cells["qaic"].how == "No usable package."
    assert cells["qaic"].red == ("int8: <img src=x onerror=alert(1)> \u202e failed",)
    one = model(found, "new")
    assert (one.cells[0].state, one.cells[0].red) == ("red", ("int8: No config.json.",))
    assert (one.hub, one.architecture) == (False, "")
    shown = dict(pages.files(small(replace(found, models=(one, model(found, "org/tiny"))))))
    page = shown["org/tiny.html"]
    assert "&lt;img src=x onerror=alert(1)&gt; \\u202e failed" in page
    assert page.count('<span class="badge red">') >= 2  # in the table, and in its comparison
    schema = Draft202012Validator(json.loads(pages.SCHEMA.read_bytes()))
    assert schema.is_valid(json.loads(shown["_/api/models/org/tiny.json"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "qeff-farm/9", "cells": []}', "expected 'qeff-farm/1'. Another version of"),
        ('{"cells": []}', "is no report of a farm: KeyError"),
        ("[" * 100_000, "is no report of a farm: RecursionError"),
        (None, "is no report of a farm: FileNotFoundError"),
    ],
    ids=["newer", "other", "deep", "missing"],
)
def test_reports_of_another_form_are_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    if text is not None:
        file.write_text(text)
    assert cli.main(["site", "-o", str(tmp_path / "site"), "--report", str(file), "-q"]) == 1
    assert message in capsys.readouterr().err


# --- data --------------------------------------------------------------------------------------------------------


def test_data_follow_their_schema(site: Path, zoo: Zoo) -> None:
    api = site / "_" / "api"
    shown = [
        *api.glob("*.json"),
        *(api / "models" / "local").glob("*.json"),
        api / "models" / "org" / "tiny.json",
    ]
    documents = [path for path in shown if path.name != "schema.json"]
    assert len(documents) > len(HOSTILE) + 3
    schema = Draft202012Validator(json.loads(pages.SCHEMA.read_bytes()))
    for path in documents:
        content = json.loads(path.read_bytes())
        if "architectures" in path.name:
            content["architectures"] = content["architectures"][::20]
        error = next(schema.iter_errors(content), None)
        assert error is None, f"{path}: {error}"
    index = json.loads((api / "index.json").read_bytes())
    rows = [
        row
        for part in index["shards"]
        for row in json.loads((api / part["file"]).read_bytes())["rows"]
    ]
    assert len(rows) == index["count"] == len(zoo.models)
    assert all((site / f"{row[1] or row[0]}.html").is_file() for row in rows)


def test_the_feed_is_atom_and_llms_txt_lists_pages(site: Path, zoo: Zoo) -> None:
    atom = "{http://www.w3.org/2005/Atom}"
    feed = ElementTree.parse(site / "feed.xml").getroot()
    entries = feed.findall(f"{atom}entry")
    assert len(entries) == sum(len(one.variants) for one in zoo.models)
    for entry in entries:
        assert (site / entry.find(f"{atom}link").attrib["href"]).is_file()  # type: ignore[union-attr]
    text = (site / "llms.txt").read_text()
    links = re.findall(r"\((_/[^)]+)\)", text)
    assert len(links) >= len(zoo.models)
    assert all((site / link).is_file() for link in links)
    assert "alert" not in text.replace("script-alert-1-script", "").replace("onerror-alert-1", "")


# --- strangers' names --------------------------------------------------------------------------------------------


def test_pages_of_any_name_stay_in_the_folder() -> None:
    names = [
        *HOSTILE,
        "a/b",
        "A/B",
        "a/B",
        "_/api",
        "con/../x",
        "org/index",
        "org/x.html",
        ".",
        "",
        "\0",
        "é",
        "x" * 1000,
    ]
    found = addresses.assign(names)
    assert found["A/B"] == "A/B"
    assert len({page.lower() for page in found.values()}) == len(found)
    for page in found.values():
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9][A-Za-z0-9._-]*", page)
        assert ".." not in page
        assert not page.lower().endswith("/index")


class Tags(HTMLParser):
    """Start tags of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_names_licences_and_reasons_are_text(site: Path, zoo: Zoo) -> None:
    ours = {"script", "link", "meta"}
    for file in [
        *site.glob("*.html"),
        *site.glob("local/*.html"),
        *site.glob("Qwen/Qwen3-0.6B.html"),
        *site.glob("_/*.html"),
    ]:
        tags = Tags(file.read_text()).found
        assert not {"img", "b", "iframe", "object", "base", "style"} & {tag for tag, _ in tags}, (
            file
        )
        named = {name for _, attributes in tags for name in attributes}
        assert not [
            name for name in named if name.startswith("on") or name in ("style", "srcdoc")
        ], file
        for tag, attributes in tags:
            source = (
                attributes.get("src") or (attributes.get("href") if tag in ours else None) or ""
            )
            assert not re.match(r"(?i)\s*(https?:)?//|javascript:", source), file
            link = re.sub(r"[\x00-\x20]", "", attributes.get("href") or "") if tag == "a" else ""
            scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", link)
            assert scheme is None or scheme[1].lower() == "https", link
        policy = next(a["content"] for t, a in tags if t == "meta" and "http-equiv" in a)
        assert policy is not None
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    page = (site / f"{model(zoo, QUOTES).page}.html").read_text()
    assert "\u202e" not in page
    assert r"\u202egpj" in page
    assert "{{ 7 * 7 }}" in (site / f"{model(zoo, '{{ 7 * 7 }}').page}.html").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"value": 1e308, "threshold": 1e-308},
        {"value": -5, "threshold": -1e-300},
        {"value": None, "threshold": 0},
        {"value": 0, "threshold": 0.5, "canary": {"mutation": "m", "value": 1e300, "failed": True}},
        {"stage": "<b>" * 100_000, "metric": "\u202e" * 10},
    ],
    ids=["far", "negative", "not-finite", "nothing", "long"],
)
def test_odd_figures_are_drawn_and_bounded(change: Any, zoo: Zoo) -> None:
    found = evidence.of_manifest(
        draft(validation=[check(op="<=", **{"metric": "max_relative_error", **change})]), ENTRY
    )
    assert found is not None
    drawn = str(plots.errors(found))
    assert len(drawn) < 5000
    assert not drawn or ElementTree.fromstring(drawn).tag == "svg"
    assert "nan" not in drawn
    assert "inf" not in drawn.replace("finite", "")
    assert len(json.dumps(vars(found), default=vars, allow_nan=False)) < 10_000


@pytest.mark.parametrize(
    "change",
    [
        {"validation": [7]},
        {"validation": [check(against=None)]},
        {"validation": [check(metric="max_relative_error", value=10**400)]},
        {"spec": []},
        {"target": "ort"},
        {"weights": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_manifests_of_another_form_are_refused(change: Any) -> None:
    with pytest.raises(ValueError, match="Error"):
        evidence.of_manifest(draft(**change), ENTRY)


@pytest.mark.parametrize("size", [10**400, 1e400, -1, "8", None])
def test_memory_of_odd_sizes_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"Error|sizes"):
        needed_memory({"files": [{"role": "weights", "size": size}], "programs": []})


# --- the command builder -----------------------------------------------------------------------------------------


PARSER = cli.parser()


def parsed(line: str) -> Any:
    first, *rest = shlex.split(line)
    assert first == "qeff-zoo"
    return PARSER.parse_args(rest)


def test_words_of_others_are_quoted_in_commands(zoo: Zoo) -> None:
    for name in HOSTILE:
        one = model(zoo, name)
        found = builder.choices(
            name,
            hub=one.hub,
            task=one.task,
            recipe=registry.find_recipe("llama"),
            variants=one.variants,
        )
        assert found is not None
        line = found["build"]["line"][0] + " --target ort" + found["build"]["line"][1]
        assert parsed(line).model == f"./{name}"
        (shared,) = found["packages"]
        assert parsed(shared["pull"]).key == shared["name"]
        built = found["build"]["python"]
        call = ast.parse("".join(built)).body[0].value  # type: ignore[attr-defined]
        assert call.args[0].value == f"./{name}"


@pytest.mark.parametrize("name", ["llama", "bert", "whisper", "vit", "qwen2_vl", "wav2vec2"])
def test_choices_are_those_of_the_options(name: str) -> None:
    recipe = registry.find_recipe(name)
    found = builder.choices("org/x", hub=True, task=recipe.task, recipe=recipe, variants=())
    assert found is not None
    assert {device["name"] for device in found["devices"]} <= {*OPTIONS["target"].allowed}
    for device in found["devices"]:
        assert {*device["weights"]} <= {*OPTIONS["weights"].allowed}
    if found["context"]:
        assert OPTIONS[found["context"]["name"]].flag == found["context"]["flag"]
        assert found["context"]["values"]


# --- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with served(site) as (address, _):
        yield address


def listed(tab: Tab) -> list[str]:
    return tab.page.locator("#rows tr:not([hidden]) th").all_inner_texts()


def settle(tab: Tab) -> None:
    tab.page.locator("#count", has_text=" of ").wait_for()
    tab.page.wait_for_timeout(120)  # the form waits for the next key


def test_models_are_searched_and_filtered(tab: Tab, url: str, zoo: Zoo) -> None:
    page = tab.page
    page.goto(f"{url}/index.html")
    settle(tab)
    assert len(listed(tab)) == 100
    page.get_by_role("button", name="Show more").click()
    assert len(listed(tab)) == len(zoo.models)
    page.get_by_label("Search").fill("tiny llama")
    settle(tab)
    assert listed(tab) == ["org/tiny", "tiny-llama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"]
    page.get_by_label("Precision").select_option("int4")
    settle(tab)
    assert listed(tab) == ["org/tiny"]
    assert "q=tiny+llama&weights=int4" in page.url
    page.reload()
    settle(tab)
    assert listed(tab) == ["org/tiny"]
    page.get_by_role("button", name="Clear").click()
    settle(tab)
    page.get_by_label("Proof").select_option("red")
    settle(tab)
    red = [one.name for one in zoo.models if any(cell.red for cell in one.cells)]
    assert KNOWN_BAD in red
    assert listed(tab) == red
    page.get_by_label("Target").select_option("qaic")
    settle(tab)
    assert listed(tab) == []
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Licence").select_option(LICENSE)
    page.get_by_label("Size").select_option("0-1")
    settle(tab)
    assert len(listed(tab)) == len(HOSTILE)
    page.get_by_role("link", name=SCRIPT).click()
    assert page.get_by_role("heading", level=1).inner_text() == SCRIPT


def test_architectures_are_searched(tab: Tab, url: str) -> None:
    tab.page.goto(f"{url}/_/architectures/index.html?state=red")
    settle(tab)
    assert "phimoe" in listed(tab)
    assert "llama" not in listed(tab)
    tab.page.get_by_role("link", name="phimoe").click()
    assert "expected at most 50%" in tab.page.inner_text("main")


def every_choice(tab: Tab) -> list[list[str]]:
    """Choose everything in the command builder; return the lines of each choice."""
    return tab.page.evaluate("""() => {
      const fields = document.getElementById("builder").elements, found = [];
      const values = (name) => [...fields[name].options].map((one) => one.value);
      const each = (name, next) => (values(name).length ? values(name) : [null]).forEach((value) => {
        if (value !== null) {
          fields[name].value = value;
          fields[name].dispatchEvent(new Event("input", {bubbles: true}));
        }
        next();
      });
      each("device", () => each("weights", () => each("context", () => each("package", () =>
        found.push([...document.querySelectorAll("#lines code")].map((one) => one.textContent))))));
      return found;
    }""")  # type: ignore[no-any-return]


def test_every_command_of_the_builder_parses(tab: Tab, url: str, zoo: Zoo, site: Path) -> None:
    tried = 0
    tasks: dict[str, Model] = {one.task: one for one in zoo.models if one.architecture}
    for one in [model(zoo, "org/tiny"), *(model(zoo, name) for name in HOSTILE), *tasks.values()]:
        tab.page.goto(f"{url}/{one.page}.html")
        for lines in every_choice(tab):
            assert len(lines) >= 3
            *commands, python = lines
            for line in commands:
                arguments = parsed(line)
                assert arguments.command in ("pull", "build", "run", "serve")
                if arguments.command == "build":
                    assert arguments.model == (one.name if one.hub else f"./{one.name}")
            calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
            named = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
            assert all(callable(getattr(qeff_zoo, name)) for name in named)
            assert "load" in named
            tried += 1
    assert tried > 100


def test_a_command_is_copied(browser: "Browser", url: str, zoo: Zoo) -> None:
    with opened_tab(browser, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.page.goto(f"{url}/org/tiny.html")
        tab.page.get_by_label("Precision").select_option("int4")
        tab.page.get_by_label("Context").select_option("2048")
        tab.page.get_by_role("button", name="Copy: Pull").click()
        copied = tab.page.evaluate("navigator.clipboard.readText()")
    (wanted,) = (
        variant
        for variant in model(zoo, "org/tiny").variants
        if (variant.weights, variant.context) == ("int4", "2048")
    )
    assert copied == f"qeff-zoo pull org/tiny --key {wanted.key} --from {wanted.remote}"


@pytest.mark.parametrize(("width", "colours"), [(360, "dark"), (1280, "light")])
def test_pages_fit_and_are_accessible(
    browser: "Browser", url: str, zoo: Zoo, width: int, colours: Any
) -> None:
    hostile = f"{model(zoo, QUOTES).page}.html"
    with opened_tab(browser, viewport={"width": width, "height": 900}, color_scheme=colours) as tab:
        for path in ("index.html", "org/tiny.html", "_/architectures/phimoe.html", hostile):
            tab.page.goto(f"{url}/{path}")
            assert tab.overflow() <= 0, path
            assert path == hostile or tab.flaws() == [], path


def test_a_printed_page_has_every_figure_and_no_form(tab: Tab, url: str) -> None:
    tab.page.goto(f"{url}/org/tiny.html")
    tab.page.emulate_media(media="print")
    tab.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # as printing does
    assert tab.page.locator("nav, form, .copy").filter(visible=True).count() == 0
    assert tab.page.locator("details:not([open])").count() == 0
    assert tab.page.locator("td", has_text="prefill").first.is_visible()


def test_the_list_is_used_by_keyboard(tab: Tab, url: str) -> None:
    tab.page.goto(f"{url}/index.html")
    settle(tab)
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.page.get_by_label("Search").focus()
    tab.page.keyboard.type("org/tiny")
    settle(tab)
    tab.page.get_by_role("link", name="org/tiny").focus()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/org/tiny.html")


# --- the folder --------------------------------------------------------------------------------------------------


def small(zoo: Zoo) -> Zoo:
    return replace(zoo, models=zoo.models[:3], architectures=zoo.architectures[:1])


def test_a_site_replaces_an_earlier_one_only(zoo: Zoo, tmp_path: Path) -> None:
    place = tmp_path / "site"
    folder.write(small(zoo), place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    folder.write(replace(small(zoo), title="Another"), place)
    assert "Another" in (place / "index.html").read_text()
    same = [
        path for path, content in before.items() if path.is_file() and path.read_bytes() == content
    ]
    assert place / "_" / "site.css" in same
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    with pytest.raises(PublishError, match="something else is there"):
        folder.write(small(zoo), tmp_path / "home")
    assert (tmp_path / "home" / "thesis.txt").read_text() == "mine"


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from qeff_zoo.site import folder, pages
from qeff_zoo.site.content import Zoo
zoo = Zoo(title="Half", models=(), architectures=(), targets=("ort",), remotes=())
made = pages.files
def killed(zoo):
    yield from itertools.islice(made(zoo), int(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
pages.files = killed
folder.write(zoo, Path(sys.argv[1]))
"""


def test_a_killed_run_leaves_the_earlier_site(zoo: Zoo, tmp_path: Path) -> None:
    place = tmp_path / "site"
    folder.write(small(zoo), place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    done = subprocess.run([sys.executable, "-c", KILLED, str(place), "5"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert len([*tmp_path.iterdir()]) > 1  # what the killed run left
    folder.write(small(zoo), place)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_the_preview_finds_pages_by_their_hub_id(site: Path) -> None:
    found: list[str] = []
    ready = threading.Event()

    def listening(address: str) -> None:
        found.append(address)
        ready.set()

    threading.Thread(target=serve, args=(site, 0, listening), daemon=True).start()
    assert ready.wait(10)
    with urllib.request.urlopen(f"{found[0]}org/tiny") as answer:
        assert b"<h1>org/tiny</h1>" in answer.read()
    port = int(found[0].rstrip("/").rpartition(":")[2])
    with pytest.raises(ServingError, match=f"Cannot listen on port {port}"):
        serve(site, port, listening)


def test_the_commands_of_the_page_run(
    zoo_url: str,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gathering, "list_models", list)
    monkeypatch.setattr(registry, "list_recipes", lambda: [registry.find_recipe("llama")])
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "site.md").read_text()
    (session,) = re.findall(r"<!-- session: [^>]*-->\n```console\n(.*?)```", page, re.DOTALL)
    lines = session.replace("file://$PWD/zoo", zoo_url).splitlines()
    assert len(lines) == 3
    report(tmp_path, {})
    for line in lines:
        assert cli.main(shlex.split(line.removeprefix("$ qeff-zoo "), comments=True)) == 0
        assert capsys.readouterr().out == "my-site\n"
        if "--title" in line:
            assert "<h1>My zoo</h1>" in (tmp_path / "my-site" / "index.html").read_text()
    assert "qaic-compile failed." in (tmp_path / "my-site" / "org" / "tiny.html").read_text()
    assert (tmp_path / "my-site" / "org" / "tiny.html").is_file()


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the checkpoints that are only declared, whose evidence takes a second to read."""
    monkeypatch.setattr(gathering, "list_models", list)


@pytest.mark.usefixtures("no_models")
def test_a_remote_that_is_not_there_is_named(tmp_path: Path, home: Path) -> None:
    with pytest.raises(RemoteError, match="has no index of packages"):
        gather([(tmp_path / "nothing").as_uri()])


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": "orbit"}, "A newer qeff-zoo wrote it"),
        ({"plan": {"spec": 99}}, "has form 99.*A newer qeff-zoo wrote it"),
        ({"plan": {}}, "is no record of this version: KeyError"),
        (None, "is no record of this version"),
    ],
)
def test_records_of_a_newer_version_are_named(change: Any, message: str, tmp_path: Path) -> None:
    record = json.loads((FOLDER / "local" / "tiny-llama.json").read_bytes())
    if change is not None:
        record["records"][0] |= change
    (tmp_path / "acme").mkdir()
    content = json.dumps(record) if change is not None else "{"
    (tmp_path / "acme" / "model.json").write_text(content)
    with pytest.raises(PackageError, match=message):
        gather([], [tmp_path])


@pytest.mark.usefixtures("no_models")
def test_a_package_of_a_newer_version_is_shown_without_figures(
    zoo_url: str, tmp_path: Path, home: Path
) -> None:
    files = {
        path: path.read_bytes()
        for path in Path(zoo_url.removeprefix("file://")).rglob("*")
        if path.is_file()
    }
    place = tmp_path / "remote"
    for path, content in files.items():
        file = place / path.relative_to(zoo_url.removeprefix("file://"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            content.replace(b"qeff-package/2", b"qeff-package/9")
            if path.name == "manifest.json"
            else content
        )
    one = model(gather([place.as_uri()]), "org/tiny")
    assert "its manifest differs from the index" in one.comparisons[0].sentences[-1]
    assert one.cells[0].level == "checkpoint"  # as the index has it


def test_a_site_needs_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["site"]) == 1
    assert "Expected --output DIR, or --serve" in capsys.readouterr().err


@pytest.mark.usefixtures("no_models")
def test_recorded_speed_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = package(tmp_path / "package", "org/tiny")
    case = {
        "batch_size": 1,
        "prompt_len": 100,
        "generation_len": 28,
        "threads": None,
        "draft": None,
        "images": (),
        "audio": (),
    }
    figures = bench.Figures(
        **case, ttft_s=0.25, encode_s=None, image_tokens=0, audio_tokens=0, prefill_tokens_per_s=400.0,
        decode_tokens_per_s=30.0, e2e_tokens_per_s=25.0, peak_rss_bytes=10**9, drafted_tokens=0, accepted_tokens=0,
    )  # fmt: skip
    monkeypatch.setattr("os.getloadavg", lambda: (7.2, 1.0, 1.0))
    monkeypatch.setattr(bench, "plan", lambda *_, **__: [figures])
    monkeypatch.setattr(bench, "run", lambda *_, **__: [figures])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", str(made.path), "--record", "-q"]) == 1
    assert "has no record in 'validated_models/org/tiny.json'" in capsys.readouterr().err
    record = json.loads((FOLDER / "local" / "tiny-llama.json").read_bytes())
    record |= {
        "model_id": "org/tiny",
        "records": [{**record["records"][0], "build_key": made.build_key}],
    }
    (tmp_path / "validated_models" / "org").mkdir(parents=True)
    (tmp_path / "validated_models" / "org" / "tiny.json").write_text(json.dumps(record))
    assert cli.main(["bench", str(made.path), "--record", "-q"]) == 0
    (one,) = model(gather([], [tmp_path / "validated_models"]), "org/tiny").speeds
    assert (one.context, one.decode, one.ttft, one.memory) == (128, 30.0, 0.25, 10**9)
    assert "cores" in one.where
    assert "busy with other work: load 7.2" in one.where


def test_speed_of_speech_is_shown_in_seconds_of_audio(zoo: Zoo) -> None:
    case = {
        "batch_size": 1,
        "ttft_s": None,
        "decode_tokens_per_s": None,
        "real_time_factor": 0.04,
        "peak_rss_bytes": 9,
    }
    record = {
        "weights": "int8",
        "target": "ort",
        "measured": {"speed": {"where": "a laptop", "cases": [case]}},
    }
    spoken = replace(model(zoo, "org/tiny"), speeds=tuple(evidence.speeds_of(record)))
    shown = dict(pages.files(small(replace(zoo, models=(spoken,)))))
    assert '<td data-label="Audio seconds/s" class="number">25.0</td>' in shown["org/tiny.html"]
    assert "Prompt tokens/s" not in shown["org/tiny.html"]
    schema = Draft202012Validator(json.loads(pages.SCHEMA.read_bytes()))
    assert schema.is_valid(json.loads(shown["_/api/models/org/tiny.json"]))


def test_no_page_has_more_than_a_megabyte(zoo: Zoo) -> None:
    one = model(zoo, "org/tiny")
    checks = (one.comparisons[0].checks * 500)[:500]
    many = replace(
        one,
        comparisons=tuple(replace(one.comparisons[0], checks=checks) for _ in range(200)),
        variants=one.variants * 2500,
    )
    files = [*pages.files(small(replace(zoo, models=(many,))))]
    assert max(len(text) for path, text in files if path.endswith(".html")) < 1_000_000
    code = Path(pages.__file__).parent
    assert (
        sum(
            file.stat().st_size
            for part in ("assets", "templates")
            for file in (code / part).iterdir()
        )
        < 300_000
    )


def test_speed_is_drawn_against_context() -> None:
    cases = [
        Speed(weights="int8", target="ort", where="a laptop", batch_size=1, context=context, prefill=900.0,
              decode=decode, ttft=0.1, memory=10**9)
        for context, decode in ((128, 90.0), (1024, 70.0), (4096, 40.0))
    ]  # fmt: skip
    drawn = ElementTree.fromstring(str(plots.speed(cases)))
    assert drawn.attrib["aria-label"] == (
        "Generated tokens per second against tokens of context. The fastest is ort int8, batch 1."
    )
    assert not plots.speed(cases[:1])
