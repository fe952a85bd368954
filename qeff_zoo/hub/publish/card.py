# SPDX-License-Identifier: Apache-2.0
"""The model card of a remote: front matter for the Hub, text for people, all from the index.

In: an index. Out: the text of README.md. Other text of an existing card stays: only the part between two
marks is generated.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from qeff_zoo.contract import NAMES, example, find
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.index_tree import Leaf
from qeff_zoo.hub.publish.gate import KNOWN
from qeff_zoo.hub.remotes.protocol import WritableRemote
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.terminal.printing import human_size

CARD_NAME = "README.md"
_LIMIT = 1 << 20
#: The most packages that a card lists; a larger table is unreadable, and a publication would read the whole index.
_MOST_PACKAGES = 1000
_BEGIN = "<!-- packages: written by qeff-zoo publish -->"
#: It ends with a digest of what was written around it, which shows other edits.
_END = "<!-- /packages {} -->"
#: A mark in a text of others is escaped, and is none.
_SECTION = re.compile(
    rf"(?<!\\){re.escape(_BEGIN)}.*?(?<!\\){_END.format('([0-9a-f]{16})')}", re.DOTALL
)
_NOT_OURS = "0" * 16
#: What each level of validation says.
_LEVELS = {
    "none": "nothing was compared",
    "tiny": "models of its architecture with made-up weights agree with Hugging Face's own code",
    "emulated": "its graph agrees with Hugging Face's own model where both round as the device does",
    "checkpoint": "its answers were compared with those of the unpatched Hugging Face model, of the same revision",
    "simulated": "the same, of what its compiler made, on a simulator of the device",
    "device": "the same, on the device",
    "task": "it also does a task as well",
}


def card_upload(remote: WritableRemote) -> Mapping[str, Callable[[Index], bytes]]:
    """Return the card as a commit takes it: how it follows from the index.

    Args:
        remote: Destination; its card is read after the index, and a commit in between restarts both.
    """

    def write(index: Index) -> bytes:
        present = remote.present(CARD_NAME, limit=_LIMIT)
        there = None if present is None else present.decode(errors="replace")
        return card(index, remote.url, there).encode()

    return {CARD_NAME: write}


def card(index: Index, where: str, present: str | None = None) -> str:
    """Write a model card, and keep what others wrote into the one that is there.

    Args:
        index: Index of the remote.
        where: URL of the remote.
        present: The card that is there; None if there is none.
    """
    count, index = index.packages, _listed(index)
    ours = _around(index)
    around, digest = ours, _digest(*ours)
    match = _SECTION.search(present or "")
    if present and match:
        there = present[: match.start()], present[match.end() :]
        if match[1] != _digest(*there):
            around, digest = there, match[1]
    elif present:
        around, digest = (f"{present.rstrip()}\n\n", "\n"), _NOT_OURS
    section = _section(index, count, where)
    return f"{around[0]}{_BEGIN}\n\n{section}\n\n{_END.format(digest)}{around[1]}"


def _listed(index: Index) -> Index:
    """Return what the card lists, in memory: all packages of an index, or none of a large one."""
    if index.packages > _MOST_PACKAGES:
        return Index()
    return Index(tree=Leaf(index.entries, index.notices))


def _digest(before: str, after: str) -> str:
    return hashlib.sha256(f"{before}\0{after}".encode()).hexdigest()[:16]


def _around(index: Index) -> tuple[str, str]:
    """Write what stands before and after the packages."""
    title = " and ".join(index.models) if 0 < len(index.models) <= 3 else "Compiled models"
    about = (
        "Compiled packages, made and checked by qeff-zoo. Each says what it was made from and how far it was proved, "
        "and every file of it has a digest."
    )
    return f"{_front_matter(index)}\n# {_plain(title)}\n\n{about}\n\n", "\n"


def _front_matter(index: Index) -> str:
    """Write what the Hub reads. Every value is written as JSON, which is YAML that cannot be misread.

    No value holds a mark of ours: `<` is escaped, as wherever else a text is not written by `_plain`.
    """
    entries = index.entries
    bases = [model for model in index.models if model.count("/") == 1]
    tasks = {str(entry.axes.get("task")) for entry in entries}
    tag = tasks.pop() if len(tasks) == 1 else ""
    facts = {
        "base_model": bases,
        "base_model_relation": "quantized" if bases else None,
        "library_name": "qeff-zoo",
        "license": _licence(entries),
        "pipeline_tag": (find(tag).tag if tag in NAMES else "") or tag,
        "tags": sorted({"qeff-zoo", *(str(entry.axes["target"]) for entry in entries)}),
    }
    lines = [f"{name}: {_literal(value)}" for name, value in facts.items() if value]
    return "\n".join(["---", *lines, "---", ""])


def _licence(entries: Iterable[Entry]) -> str | None:
    """Return the Hub's name of the licence; "other" for several, or for one that the Hub does not list."""
    stated = {entry.license.lower() if entry.license else None for entry in entries}
    if stated <= {None}:
        return None
    one = stated.pop()
    return one if not stated and one in KNOWN else "other"


def _section(index: Index, count: int, where: str) -> str:
    packages = [_table(index), _legend(index)]
    if count > index.packages:
        url = shlex.quote(where).replace("<", quote("<"))
        packages = [f"{count:,} packages. `qeff-zoo ls {url} MODEL` lists those of a model."]
    return "\n\n".join(["## Packages", *packages, "## Run one", _commands(index, where)])


def _table(index: Index) -> str:
    many = len(index.models) > 1
    header = [*(["model"] if many else []), "package", "validated", "tested with", "size", "note"]
    rows = [
        [*([_plain(entry.model)] if many else []), *_row(entry, index)]
        for entry in sorted(index.entries, key=lambda entry: (entry.model, entry.path))
    ]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(entry: Entry, index: Index) -> Iterator[str]:
    yield f"[{_plain(entry.variant)}]({entry.path}/{MANIFEST_NAME}) {entry.key16}"
    yield entry.validated + (", signed" if entry.signed else "")
    yield _plain(", ".join(f"{tool} {version}" for tool, version in sorted(entry.tested.items())))
    yield human_size(entry.size)
    notice = index.notices.get(entry.path)
    instead = f"; take {notice.instead}" if notice and notice.instead else ""
    yield _plain(f"{notice.state}: {notice.reason}{instead}") if notice else ""


def _legend(index: Index) -> str:
    levels = sorted({entry.validated for entry in index.entries}, key=list(_LEVELS).index)
    proofs = "\n".join(f"- *{level}*: {_LEVELS[level]}." for level in levels)
    sources = sorted({(entry.model, entry.revision) for entry in index.entries if entry.revision})
    lines = "\n".join(
        f"- {_plain(model)} at revision {_plain(revision)}." for model, revision in sources
    )
    names = (
        "A package's name says its target and weights, then its sizes: `pl` tokens of a prompt that one call takes, "
        "`cl` tokens of context, `sl` tokens of a text, `bs` rows of a call, `fbs` requests at a time, `adapter` the "
        "digests of adapters that were merged into its weights. It leads to the "
        "manifest, which has every choice, every file's digest, and the figures of the comparison."
    )
    proved = "\n".join(
        f"- {_plain(entry.variant)} {entry.key16}: {_plain(entry.proof)}"
        for entry in sorted(index.entries, key=lambda entry: (entry.model, entry.path))
        if entry.proof
    )
    return (
        f"{names}\n\nWhat *validated* means:\n\n{proofs}"
        + (f"\n\nWhat was proved:\n\n{proved}" if proved else "")
        + (f"\n\nMade from:\n\n{lines}" if lines else "")
    )


def _commands(index: Index, where: str) -> str:
    model = index.models[0] if len(index.models) == 1 and "<" not in index.models[0] else "MODEL"
    name = shlex.quote(model)
    where = where.replace("<", quote("<"))
    tasks = {str(entry.axes.get("task")) for entry in index.entries}
    given = example(tasks.pop() if len(tasks) == 1 else "")
    extras = "run" if given.startswith("--prompt") else "run,media"
    return (
        f"```console\n$ pip install 'qeff-zoo[{extras}]'\n$ export QEFF_ZOO_STORES={shlex.quote(where)}\n"
        f'$ qeff-zoo resolve {name}\n$ qeff-zoo run "$(qeff-zoo pull {name})" {given}\n```\n\n'
        f"```python\nimport qeff_zoo\n\nsession = qeff_zoo.load({_literal(model)})\n```"
    )


def _literal(value: Any) -> str:
    return json.dumps(value).replace("<", "\\u003c")


def _plain(text: str) -> str:
    """Write a text so that Markdown and HTML take it for nothing else."""
    return re.sub(r"([\\`*_\[\]<>|&#])", r"\\\1", text)
