# SPDX-License-Identifier: Apache-2.0
"""The design's rules, read off the source: who imports whom, what core may not know, and how long things get."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from qeff_zoo import contract, sessions

CORE = ROOT / "qeff_zoo"
RECIPES = ROOT / "recipes"
HEAVY = {
    "accelerate", "fastapi", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "safetensors", "tokenizers",
    "torch", "transformers", "uvicorn",
}  # fmt: skip
#: Of the standard library: modules that take longer to import than a light command else takes.
SLOW = {"asyncio", "unittest"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


CORE_SOURCES = sources("qeff_zoo")
RECIPE_SOURCES = [path for path in sources("recipes") if path.name != "__init__.py"]
ALL_SOURCES = sources("qeff_zoo", "recipes", "scripts", "benchmarks", "tests")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {*map(module_name, CORE_SOURCES)}


def only_checked(test: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING`, or that of `typing`."""
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def running(tree: ast.Module) -> Iterator[ast.AST]:
    """Walk all of a module but what only type checkers read."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and only_checked(node.test):
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))


def imports(path: Path, *, types: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the full dotted name of everything that a file imports, at any depth, and the line.

    Args:
        path: The file.
        types: Whether imports for type checkers alone count as well.
    """
    package = (
        module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    )
    for node in ast.walk(parse(path)) if types else running(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


@cache
def core_imports(path: Path, *, types: bool = False) -> set[str]:
    """Name the modules of qeff_zoo that a file imports."""
    found = set()
    for name, _ in imports(path, types=types):
        module = name if name in MODULES else name.rpartition(".")[0]
        if module in MODULES and module != module_name(path):
            found.add(module)
    return found


def folder_of(module: str) -> str:
    """Name the folder of qeff_zoo that a module is in; a module at the top stands for itself."""
    return f"{module}.".split(".")[1]


def imported_from(paths: list[Path], wrong: Callable[[str], bool]) -> list[str]:
    """List `file:line: name` of every import whose full name is wrong."""
    return [
        f"{relative(path)}:{line}: {name}"
        for path in paths
        for name, line in imports(path)
        if wrong(name)
    ]


def nodes_of(paths: list[Path], wrong: Callable[[Any], bool]) -> list[str]:
    """List `file:line: source` of every node that is wrong."""
    return [
        f"{relative(path)}:{node.lineno}: {ast.unparse(node).splitlines()[0]}"
        for path in paths
        for node in ast.walk(parse(path))
        if wrong(node)
    ]


# --- imports point one way ---------------------------------------------------------------------------------------


def test_recipes_import_only_declarations_and_siblings() -> None:
    allowed = (
        "qeff_zoo.multimodal.", "qeff_zoo.recipe.", "recipes.", "collections.", "dataclasses.", "typing.",
    )  # fmt: skip
    wrong = imported_from(RECIPE_SOURCES, lambda name: not f"{name}.".startswith(allowed))
    assert not wrong, (
        "A recipe is data: it imports qeff_zoo.recipe, qeff_zoo.multimodal and siblings (`from .llama import …`)."
    )


def test_core_imports_no_recipe_by_name() -> None:
    wrong = imported_from(
        CORE_SOURCES, lambda name: f"{name}.".startswith(("qeff_zoo.recipes.", "recipes."))
    )
    assert not wrong, "Core finds recipes through qeff_zoo.registry alone."


@pytest.mark.parametrize(
    ("module", "importers"),
    [
        ("qeff_zoo.cli", {"qeff_zoo.__main__"}),
        (
            "qeff_zoo.pipeline",
            {
                "qeff_zoo",
                "qeff_zoo.api",
                "qeff_zoo.qefficient",
                "qeff_zoo.pipeline.comparison",
                "qeff_zoo.pipeline.checks",
                "qeff_zoo.cli",
            },
        ),
        (
            "qeff_zoo.api",
            {"qeff_zoo", "qeff_zoo.qefficient", "qeff_zoo.cli"},
        ),
    ],
)
def test_the_top_of_the_flow_is_imported_from_above_only(module: str, importers: set[str]) -> None:
    found = {module_name(path) for path in CORE_SOURCES if module in core_imports(path)}
    above = ("qeff_zoo.qefficient.", "qeff_zoo.qefficient.cloud", "qeff_zoo.cli.", "qeff_zoo.farm.")
    extra = {name for name in found - importers if not name.startswith(above)}
    assert not extra, (
        f"{module} is imported by {sorted(extra)}; expected at most {sorted(importers)}."
    )


@pytest.mark.parametrize(
    ("name", "below"),
    [("errors", set()), ("recipe_media", set()), ("recipe", {"qeff_zoo.recipe_media"})],
)
def test_the_bottom_of_the_flow_imports_nothing_of_ours(name: str, below: set[str]) -> None:
    assert core_imports(CORE / f"{name}.py") == below


def test_no_module_imports_itself_through_others() -> None:
    graph = {module_name(path): core_imports(path, types=True) for path in CORE_SOURCES}
    graph["qeff_zoo"] = set()  # the public names; importing any module runs it first
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"Imports go round: {' <- '.join(error.args[1])}.")


#: Folders and single modules of qeff_zoo, from top to bottom: each imports what stands in a later row.
FLOORS = (
    *("__main__", "cloud", "qefficient", "cli", "scaffold", "farm", "api"),
    *(
        "site",
        "finetuning",
        "bench",
        "prediction",
        "pipeline",
        "quantizer",
        "hub",
        "tasks",
        "serving",
        "validation",
    ),
    *("sessions", "plan", "targets", "multimodal", "export", "runtime", "media"),
    *("contract", "weights", "checkpoint", "store", "package", "graph"),
    *(
        "registry",
        "unsupported",
        "recipe",
        "recipe_media",
        "terminal",
        "versions",
        "settings",
        "disk",
        "errors",
    ),
)


def test_folders_import_what_stands_below_them() -> None:
    arrows: dict[tuple[str, str], list[str]] = {}
    for path in CORE_SOURCES:
        source = folder_of(module_name(path))
        for module in core_imports(path, types=True) if source else ():
            arrow = (source, folder_of(module))
            if arrow[1] and arrow[0] != arrow[1]:
                arrows.setdefault(arrow, []).append(f"{relative(path)} imports {module}")
    unknown = {folder for arrow in arrows for folder in arrow} - {*FLOORS}
    assert not unknown, f"Add {sorted(unknown)} to FLOORS, above the folders that they import."
    upward = [arrow for arrow in arrows if FLOORS.index(arrow[0]) > FLOORS.index(arrow[1])]
    wrong = [line for arrow in sorted(upward) for line in arrows[arrow]]
    assert not wrong, "These import what stands above them:\n" + "\n".join(wrong)


#: Folders that running, building and serving a package need not have, and the modules beside them that import them.
APART = {
    "qefficient": {"qeff_zoo", "qeff_zoo.cloud"},
    "finetuning": {"qeff_zoo.cli.finetuning", "qeff_zoo.qefficient.cloud.finetune"},
    "quantizer": {"qeff_zoo.cli.quantizing", "qeff_zoo.api"},
    "site": {"qeff_zoo.cli.sites", "qeff_zoo.farm.running"},
    "farm": {"qeff_zoo.cli.farming"},
    "prediction": {"qeff_zoo.cli.predicting"},
    "scaffold": {"qeff_zoo.cli.housekeeping"},
}


@pytest.mark.parametrize("folder", APART)
def test_folders_apart_are_imported_by_their_command_alone(folder: str) -> None:
    importers = {
        module_name(path)
        for path in CORE_SOURCES
        if folder in map(folder_of, core_imports(path, types=True))
        and folder_of(module_name(path)) != folder
    }
    assert importers == APART[folder]


def test_chains_of_folders_are_short() -> None:
    """A reader of one folder passes as few others as possible: the longest chain of imports has a limit."""
    below: dict[str, set[str]] = {}
    for path in CORE_SOURCES:
        source = folder_of(module_name(path))
        below.setdefault(source, set()).update(map(folder_of, core_imports(path, types=True)))

    @cache
    def chain(folder: str) -> tuple[str, ...]:
        others = below.get(folder, set()) - {"", folder}
        return (folder, *max(map(chain, others), key=len, default=()))

    longest = max(map(chain, below.keys() - {""}), key=len)
    assert len(longest) <= 16, f"Import less between {' > '.join(longest)}."


#: Folders and modules of some folders, from top to bottom. What is not listed is the lowest.
ROOMS = {
    "checkpoint": (
        *("merging", "sources", "cut", "opening", "formats", "draft_heads", "adapters", "gguf"),
    ),
    "hub": ("publish", "pull", "resolve", "remotes", "trust"),
    "runtime": ("engine", "caches", "decoding", "text"),
    "serving": ("server", "apis", "requests", "queues", "answers", "monitoring"),
    "serving.apis": (
        *("hub", "llama_server", "sagemaker", "ollama", "anthropic", "openai", "vllm"),
    ),
    "validation": (
        *("ladder", "perplexity", "costs", "reference", "content", "judgement", "trial"),
    ),
}


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_of_a_folder_import_what_stands_below_them(folder: str) -> None:
    prefix, order = f"qeff_zoo.{folder}.", ROOMS[folder]
    path_of_folder = CORE / folder.replace(".", "/")

    def floor(module: str) -> int:
        room = module.removeprefix(prefix).partition(".")[0]
        return order.index(room) if room in order else len(order)

    wrong = [
        f"{relative(path)} imports {module}"
        for path in sources(relative(path_of_folder))
        if path != path_of_folder / "__init__.py"
        for module in core_imports(path, types=True)
        if module.startswith(prefix) and floor(module) < floor(module_name(path))
    ]
    assert not wrong, "These import what stands above them:\n" + "\n".join(wrong)


@pytest.mark.parametrize("folder", ROOMS)
def test_every_listed_room_exists(folder: str) -> None:
    assert {f"qeff_zoo.{folder}.{room}" for room in ROOMS[folder]} <= MODULES


def test_running_a_package_needs_no_torch() -> None:
    banned = HEAVY - {"numpy", "onnxruntime", "tokenizers"}
    runtime = sources("qeff_zoo/runtime")
    of_tasks = {module_name(path): path for path in CORE.glob("tasks/*/*.py")}
    sessions = [path for name, path in of_tasks.items() if name.endswith("session")]
    used = {name for path in sessions for name in core_imports(path)} & of_tasks.keys()
    runtime += [*sessions, *(of_tasks[name] for name in used)]
    wrong = imported_from(runtime, lambda name: name.split(".")[0] in banned)
    assert not wrong, "The extra `run` has only numpy, onnxruntime, tokenizers and jinja2."


def test_a_task_s_reference_shares_no_code_with_its_packages() -> None:
    allowed = re.compile(r"qeff_zoo\.(contract|validation\..+|tasks\.\w+\.reference\.\w+)")

    def wrong(name: str) -> bool:
        return name.startswith("qeff_zoo.") and not allowed.fullmatch(name)

    assert not imported_from(sorted(CORE.glob("tasks/*/reference.py")), wrong)


@pytest.mark.parametrize("name", contract.NAMES)
def test_modules_and_classes_that_a_task_names_exist(name: str) -> None:
    task = contract.find(name)
    for of_task in (task.session, task.trial, task.reference, task.stages):
        assert callable(of_task())
    for path in task.public:
        public = path.rpartition(":")[2]
        assert getattr(sessions, public) is contract.lazy(path)()


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["--help"], ["list"], ["show", "llama"], ["run", "nowhere", "--help"]),
        ["build", str(ROOT / "examples" / "tiny-llama"), "--help"],
    ],
    ids=lambda value: " ".join(value[:1]),
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
import json, sys
from qeff_zoo import cli
code = 0
if {arguments!r}:
    try:
        code = cli.main({arguments!r})
    except SystemExit as stop:
        code = stop.code
print(json.dumps([code or 0, sorted({HEAVY | SLOW!r} & set(sys.modules))]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    code, heavy = json.loads(done.stdout.splitlines()[-1])
    assert (code, heavy) == (0, []), (
        f"Import these inside the function that needs them. {done.stderr}"
    )


# --- core knows no model -----------------------------------------------------------------------------------------


def names_model_type(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.slice
    if (
        isinstance(node, ast.Call) and node.args
    ):  # config.get("model_type"), getattr(config, "model_type")
        node = node.args[-1] if isinstance(node.func, ast.Name) else node.args[0]
    names = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}
    return getattr(node, names.get(type(node), ""), None) == "model_type"


def holds_text(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node)
    )


def compares_a_model_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        return any(
            names_model_type(operand) and holds_text(other)
            for operand in operands
            for other in operands
            if operand is not other
        )
    if isinstance(node, ast.Match):
        return names_model_type(node.subject)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in {"startswith", "endswith"} and names_model_type(node.func.value)
    return False


def test_core_never_compares_a_model_type() -> None:
    wrong = nodes_of(CORE_SOURCES, compares_a_model_type)
    assert not wrong, "What core must know about a model is a field of its recipe."


@pytest.mark.parametrize(
    ("source", "compares"),
    [
        ("config.model_type == 'llama'", True),
        ("config['model_type'] in ('llama', 'mistral')", True),
        ("'gemma' in config.model_type", True),
        ("getattr(config, 'model_type') != 'bert'", True),
        ("model_type.startswith('qwen')", True),
        ("recipe.model_type != model_type", False),
        ("'model_type' in config", False),
    ],
)
def test_comparisons_of_a_model_type_are_detected(source: str, compares: bool) -> None:
    assert any(compares_a_model_type(node) for node in ast.walk(ast.parse(source))) is compares


def test_core_never_names_a_recipe() -> None:
    # "clip" is also a mode of numpy, and llama.cpp's name of a vision encoder; a canary is a damaged model; git is also
    # the command.
    known = {recipe.stem for recipe in RECIPE_SOURCES} - {"clip", "canary", "git"}
    # An architecture that transformers lacks has its own name, as its recipe does.
    sources = [path for path in CORE_SOURCES if path.parent.name != "architectures"]
    wrong = nodes_of(sources, lambda node: isinstance(node, ast.Constant) and node.value in known)
    assert not wrong, "Core does not know which recipes exist."


def test_only_tasks_and_the_contract_name_tasks() -> None:
    rest = [
        path for path in CORE_SOURCES if not {CORE / "contract", CORE / "tasks"} & {*path.parents}
    ]
    wrong = nodes_of(
        rest, lambda node: isinstance(node, ast.Constant) and node.value in contract.NAMES
    )
    assert not wrong, "What depends on the task is a field of its `Task`."


# --- form --------------------------------------------------------------------------------------------------------


def test_tests_import_no_tests() -> None:
    """What several test modules use is in tests/helpers; a new recipe is tested by the tests of recipes."""
    tests = [path for path in sources("tests") if path.name != "test_contributing.py"]
    wrong = imported_from(tests, lambda name: name.startswith("test_"))
    assert not wrong, "Move what they share to a module of tests/helpers."


def test_tests_lie_in_folders_by_area() -> None:
    beside = [path.name for path in (ROOT / "tests").glob("*.py") if path.name != "conftest.py"]
    assert not beside, (
        "Move tests to the folder of their area, and what they share to tests/helpers."
    )
    assert not [*(ROOT / "tests" / "helpers").rglob("test_*.py")], (
        "Move it to the folder of its area."
    )


def test_every_source_names_its_licence_first() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix]
    wrong = []
    for path in [*ALL_SOURCES, *scripts, ROOT / ".ci" / "run"]:
        lines = path.read_text().splitlines() or [""]
        if lines[lines[0].startswith("#!")] != "# SPDX-License-Identifier: Apache-2.0":
            wrong.append(relative(path))
    assert not wrong


def is_print(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    )


def catches_everything(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    return node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception")


def test_only_the_command_line_prints_and_catches_everything() -> None:
    prints = {CORE / "terminal" / "printing.py", *CORE.glob("tasks/*/verbs.py")}
    rest = [path for path in CORE_SOURCES if path.parent.name not in ("cli", "cloud")]
    rest = [path for path in rest if path not in prints]
    assert not nodes_of(rest, is_print), (
        "Return it, or report it through qeff_zoo.terminal.progress."
    )
    # Threads of the engine and of a fleet have no caller to raise to: they pass every error on to the waiting clients.
    # So does a worker, whose requests are those of another process.
    handing_on = {"engine.py", "fleet.py", "worker.py"}
    rest = [path for path in rest if path.name not in handing_on]
    assert not nodes_of(rest, catches_everything), "Name the errors that are expected."


def test_modules_are_named_after_an_idea() -> None:
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert not [relative(path) for path in CORE_SOURCES if path.stem in vague]


# --- the map of folders ------------------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_architecture_maps_every_folder() -> None:
    mapped = set(re.findall(r"^\| `(qeff_zoo/[\w/]+)/` \| \S", ARCHITECTURE, re.MULTILINE))
    present = {relative(path.parent) for path in CORE_SOURCES} - {"qeff_zoo"}
    assert mapped == present, (
        "Run scripts/update_readme. A folder needs an `__init__.py` with a docstring that names its content."
    )


def test_architecture_names_folders_that_exist() -> None:
    rules = ARCHITECTURE.partition("## Where new code goes")[2]
    named = re.findall(r"`((?:[a-z_]+/)+(?:[\w.]+)?)`", rules)
    assert len(named) >= 8
    assert [
        name for name in named if not any((folder / name).exists() for folder in (ROOT, CORE))
    ] == []
