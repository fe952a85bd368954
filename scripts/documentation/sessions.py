# SPDX-License-Identifier: Apache-2.0
"""Reference of sessions: the methods by which a package of each task is called, from their docstrings."""

import inspect
import re
from collections.abc import Iterator

from documentation.tables import table
from qeff_zoo import contract

#: Methods that a user calls, in the order of the page.
VERBS = (
    *("generate", "stream", "transcribe", "embed", "embed_query", "embed_document", "embed_texts"),
    *(
        "classify",
        "entities",
        "fill",
        "find_answers",
        "choose",
        "similarity",
        "weights",
        "estimate",
        "synthesize",
        "detect",
        "segment",
        "transform",
        "draw",
    ),
)
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+)(?: \([^)]*\))?: (.*(?:\n {6,}.*)*)", re.MULTILINE)


def sessions() -> str:
    """Return a section for each class of sessions, in the order of tasks."""
    served: dict[type, list[str]] = {}
    for name in contract.NAMES:
        served.setdefault(contract.find(name).session(), []).append(name)
    return "\n\n".join("\n\n".join(_section(session, names)) for session, names in served.items())


def _section(session: type, names: list[str]) -> Iterator[str]:
    yield f"### {', '.join(names)}"
    yield f"`{session.__name__}`: {_first_line(session)}"
    for verb in VERBS:
        method = getattr(session, verb, None)
        if method is None:
            continue
        own = verb in vars(session)
        bases = [base for base in session.__mro__[1:] if verb in vars(base)]
        line = f"`{_call(verb, method)}`: {_first_line(method)}"
        if (
            not own
            and bases
            and any(contract.find(name).session() is bases[0] for name in contract.NAMES)
        ):
            yield f"{line} See `{bases[0].__name__}`."
            continue
        yield line
        if rows := _arguments(method):
            yield table(["argument", "meaning"], rows)


def _first_line(described: object) -> str:
    return (inspect.getdoc(described) or "").splitlines()[0]


def _call(verb: str, method: object) -> str:
    """Return a method's signature, without types."""
    parts = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:  # type: ignore[arg-type]
        plain = parameter.replace(annotation=inspect.Parameter.empty)
        text = str(plain)
        parts.append(
            f"{parameter.name}=…"
            if len(text) > 40 or " object at " in text or "<" in text
            else text
        )
    starred = [value.kind for value in inspect.signature(method).parameters.values()][1:]  # type: ignore[arg-type]
    if (
        inspect.Parameter.KEYWORD_ONLY in starred
        and inspect.Parameter.VAR_POSITIONAL not in starred
    ):
        parts.insert(starred.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return f"{verb}({', '.join(parts)})"


def _arguments(method: object) -> list[list[str]]:
    """Return the entries of the docstring's `Args:`."""
    text = inspect.getdoc(method) or ""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", text, re.MULTILINE)
    entries = _ENTRY.findall(section[1]) if section else []
    return [[f"`{name}`", " ".join(meaning.split())] for name, meaning in entries]
