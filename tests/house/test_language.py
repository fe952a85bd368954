# SPDX-License-Identifier: Apache-2.0
"""The code's English, counted: data does not speak, and a description names the thing. Counts may only fall."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from checkout import ROOT

#: Folders of each part; tests have limits of their own.
PARTS = {"code": ("qeff_zoo", "recipes"), "tests": ("tests",)}
#: Verbs of speech and sense, and everyday words in place of the field's: see docs/glossary.md.
BANNED = {
    *("ask", "asked", "asking", "asks", "say", "said", "says", "tell", "tells", "told"),
    *("hear", "heard", "hearing", "hears", "seen", "sees", "knows", "known_by"),
    *(
        "picture",
        "pictures",
        "sound",
        "sounds",
        "film",
        "films",
        "nobody",
        "somebody",
        "whoever",
        "theirs",
    ),
}
#: Words that are no names of modules besides: each had several meanings.
BANNED_MODULES = BANNED | {"choices", "found", "one", "reading", "within"}
#: Words that lines behind the first one avoid as well: "created", "detected".
BANNED_IN_BODIES = {"found", "made"}
#: Names without content: a variable or an argument is named after its value.
VAGUE = {"one", "found", "made", "given", "place", "places", "whole"}
#: Numbers of faults that are left, by part and kind: one of the code is a parameter that transformers passes. They may
#: only fall.
LIMITS = {
    ("code", "identifiers"): 1,
    ("code", "docstrings"): 0,
    ("code", "arguments"): 0,
    ("code", "bodies"): 21,
    ("code", "names"): 2007,
    ("code", "modules"): 0,
    ("tests", "identifiers"): 42,
    ("tests", "docstrings"): 186,
    ("tests", "arguments"): 91,
    ("tests", "bodies"): 48,
    ("tests", "names"): 2834,
    ("tests", "modules"): 0,
}


#: What has a docstring, and what else is read of a source.
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
_READ = *_DOCUMENTED, ast.arg, ast.Name


@cache
def faults(part: str) -> dict[str, list[str]]:
    """List violations of each rule in a part, as `path:line: text`; its sources are read once."""
    listed: dict[str, list[str]] = {kind: [] for kind in (*RULES, "modules")}
    for path in sorted(path for folder in PARTS[part] for path in (ROOT / folder).rglob("*.py")):
        nodes = nodes_of(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        for kind, rule in RULES.items():
            listed[kind] += [f"{name}:{line}: {text}" for line, text in rule(nodes)]
        folders = path.relative_to(ROOT).parent.parts
        if BANNED_MODULES & {path.stem, *folders}:
            listed["modules"].append(f"{name}:1: {path.stem}")
    return listed


def nodes_of(source: str) -> list[ast.AST]:
    """Return what the rules read of a source."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, _READ)]


def identifiers(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield names that are bound and have a banned word."""
    return ((line, name) for line, name in bound(nodes) if BANNED & set(words(name)))


def names(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield bound names without content: see `VAGUE`."""
    return ((line, name) for line, name in bound(nodes) if name.strip("_") in VAGUE)


def bound(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the names of functions, classes, arguments and variables where they are bound."""
    for node in nodes:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def words(name: str) -> list[str]:
    """Split an identifier, in snake or camel case, into lower-case words."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def docstrings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield first lines of docstrings that have a banned word."""
    for node, text in documented(nodes):
        first = text.split("\n", 1)[0]
        if BANNED & set(re.findall(r"[a-z]+", first.lower())):
            yield getattr(node, "lineno", 1), first


def bodies(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield lines of docstrings behind the first one that have a banned word, or an everyday word for a result."""
    for node, text in documented(nodes):
        for line in text.splitlines()[1:]:
            if (BANNED | BANNED_IN_BODIES) & set(re.findall(r"[a-z]+", line.lower())):
                yield getattr(node, "lineno", 1), line.strip()


def arguments(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield descriptions of arguments that begin with a preposition, a conjunction or a pronoun."""
    for node, text in documented(nodes):
        entries = re.split(r"^(?:Args|Attributes):\n", text, flags=re.MULTILINE)[1:]
        for entry in entries:
            block = re.split(r"^\S", entry, maxsplit=1, flags=re.MULTILINE)[0]
            for begin in re.findall(r"^    \*{0,2}\w+: (\w+)", block, re.MULTILINE):
                if begin in {
                    "Of",
                    "As",
                    "That",
                    "What",
                    "For",
                    "Where",
                    "Who",
                    "Such",
                    "Those",
                    "It",
                    *("By", "From", "How", "In", "Its"),
                }:
                    yield getattr(node, "lineno", 1), begin


def documented(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Yield what has a docstring, and that."""
    for node in nodes:
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node, text


RULES = {
    "identifiers": identifiers,
    "names": names,
    "docstrings": docstrings,
    "arguments": arguments,
    "bodies": bodies,
}


@pytest.mark.parametrize(("part", "kind"), LIMITS)
def test_the_private_language_only_shrinks(part: str, kind: str) -> None:
    listed, limit = faults(part)[kind], LIMITS[part, kind]
    newest = "\n".join(listed[-20:])
    assert len(listed) <= limit, f"{kind}: {len(listed)}, at most {limit}, of which some:\n{newest}"
    assert len(listed) == limit, f"{kind}: lower the limit to {len(listed)}."


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("told = 1", {"identifiers": 1}),
        ("def is_asked(x): ...", {"identifiers": 1}),
        ("class SaidWords: ...", {"identifiers": 1}),
        ("retold = asking_price", {}),
        ("one = [place for place in range(3)]", {"names": 2}),
        ("def f(_given, whole_image): ...", {"names": 1}),
        ('def f():\n    """What a config says."""', {"docstrings": 1}),
        (
            'def f(x):\n    """Return x.\n\n    Args:\n        x: Of the model.\n    """',
            {"arguments": 1},
        ),
        ('def f(x):\n    """Return x.\n\n    Args:\n        x: The model.\n    """', {}),
    ],
)
def test_the_rules_themselves(source: str, counts: dict[str, int]) -> None:
    nodes = nodes_of(source)
    assert Counter({kind: len(list(rule(nodes))) for kind, rule in RULES.items()}) == Counter(
        counts
    )
