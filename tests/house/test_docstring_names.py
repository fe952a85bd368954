# SPDX-License-Identifier: Apache-2.0
"""Names in backticks in docstrings exist: modules of qeff_zoo and their values, and members of its classes."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
from checkout import ROOT

CORE = ROOT / "qeff_zoo"
#: Dotted identifiers; `model-00001.safetensors` and `--flag` are none.
_DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")
#: Members of other projects' classes with the names of ours, names of arrays, and the domain of ONNX functions.
NOT_OURS = {
    *("ExecObj.setData", "ExecObj.setDataWithSlices", "Program.createSlicingSpecHandle"),
    *("Model.sanitize", "Quantizer.dequantize", "qeff_zoo.layers", "config.architectures"),
    *("group.name", "part.field", "loss.VARIANT", "divergence.VARIANT", "sequence.run"),
    "audio.sequence",
}
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
#: Endings of file names, which look like members.
_ENDINGS = {
    *("bin", "cpp", "csv", "gguf", "h", "html", "jinja", "js", "json", "jsonl", "lock", "md", "model", "npy"),
    *("npz", "onnx", "pem", "pt", "pth", "py", "safetensors", "sig", "so", "svg", "tar", "toml", "txt", "yaml", "yml"),
}  # fmt: skip


@cache
def modules() -> dict[str, ast.Module]:
    """Return the parsed modules of the package, by dotted name."""
    found = {}
    for path in sorted(CORE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def members(module: str) -> frozenset[str]:
    """Return the names that a module defines or imports."""
    found = {node.id for node in ast.walk(modules()[module]) if isinstance(node, ast.Name)}
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # names that are imported on first use
    return frozenset(found)


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Return the classes of the package by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def attributes(kind: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes of a class, and of its bases in the package."""
    for node in ast.walk(kind):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self"))
            ):
                yield name
    for base in kind.bases:
        for inherited in classes().get(ast.unparse(base).rpartition(".")[2].partition("[")[0], ()):
            yield from attributes(inherited)


def is_foreign(kind: ast.ClassDef) -> bool:
    """Whether a class inherits from a class outside of the package."""
    for base in kind.bases:
        name = ast.unparse(base).rpartition(".")[2].partition("[")[0]
        known = classes().get(name)
        if name not in ("Protocol", "Generic", "Enum", "object") and (
            not known or any(map(is_foreign, known))
        ):
            return True
    return False


def exists(name: str, module: str) -> bool:
    """Whether a dotted name in a docstring of a module exists, or is of another kind than those that are checked."""
    if name in NOT_OURS or name.rpartition(".")[2] in _ENDINGS:
        return True
    first, *rest = (
        imported_modules(module).get(name.partition(".")[0], name.partition(".")[0]).split(".")
    )
    rest += name.split(".")[1:]
    name = ".".join((first, *rest))
    if first in classes():
        kinds = classes()[first]
        return any(is_foreign(kind) or rest[0] in attributes(kind) for kind in kinds)
    path = [*(["qeff_zoo"] if first != "qeff_zoo" else []), first, *rest]
    places = [".".join(path), *(f"{parent}.{name}" for parent in parents(module))]
    places += [known for known in modules() if known.endswith(f".{first}")]
    for place in places:
        whole = (
            place if place.endswith(f".{name}") or place == name else f"{place}.{'.'.join(rest)}"
        )
        if whole in modules():
            return True
        owner, _, last = whole.rpartition(".")
        if owner in modules() and last in members(owner):
            return True
        kind_owner, _, kind = owner.rpartition(".")
        if kind_owner in modules() and kind in members(kind_owner) and kind in classes():
            return any(last in attributes(one) for one in classes()[kind])
    if first == "qeff_zoo":
        return False
    return first in used(module) or first in sys.stdlib_module_names or is_installed(first)


def parents(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


@cache
def imported_modules(module: str) -> Mapping[str, str]:
    """Return the modules of the package that a module imports, by their names there."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(modules()[module])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" in modules()
    }


@cache
def used(module: str) -> frozenset[str]:
    """Return the identifiers of a module's code and of its texts: values that a docstring describes."""
    found = set()
    for node in ast.walk(modules()[module]):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Constant(value=str(text)) if "\n" not in text:
                found |= set(re.findall(r"\w+", text))
    return frozenset(found)


@cache
def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def test_dotted_names_in_docstrings_exist() -> None:
    faults = [
        f"{module}:{line}: {name}"
        for module, tree in modules().items()
        for line, text in docstrings(tree)
        for name in _DOTTED.findall(text)
        if not exists(name, module)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("qeff_zoo.registry.recipe_for", True),
        ("registry.recipe_for", True),
        ("qeff_zoo.registry.recipe_of_nothing", False),
        ("registry.recipe_of_nothing", False),
        ("drawings.draw", False),
        ("Recipe.tiny", True),
        ("Recipe.huge", False),
        ("validation.trial.cases", True),
        ("config.json", True),
        ("torch.export", True),
    ],
)
def test_what_a_docstring_names(name: str, there: bool) -> None:
    assert exists(name, "qeff_zoo.validation.ladder") is there
