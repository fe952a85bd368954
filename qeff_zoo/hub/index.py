# SPDX-License-Identifier: Apache-2.0
"""Index of a remote: the list of its packages, and the notices published about them since.

In: manifests. Out: an `Index`, which reads as much of itself as it is asked for: a model's packages, or all. Nothing
here touches the network or the disk; `qeff_zoo.hub.index_files` has the form of the files.
Packages are never changed; what is learnt later, that one is bad or another is better, is a notice in the index.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from qeff_zoo.hub.index_tree import Leaf, Node, Read, Reference, leaf_of, leaves, with_leaf
from qeff_zoo.package.manifest import adapter_axis, adapters_in, base_name, digest_axis, source_in
from qeff_zoo.package.proof import summary
from qeff_zoo.plan.request import OPTIONS

#: The root of an index; where there are more than a few packages, it refers to other files.
INDEX_NAME = "index.json.gz"
#: What a notice may say of a package, in the order of severity.
STATES = ("known_bad", "yanked", "superseded")
#: A serial that no number of changes leads to; as in the schema.
SERIAL_LIMIT = 10**30

#: From the text of an index's root to its signature.
Sign: TypeAlias = Callable[[bytes], bytes]

_PATH = re.compile(r"packages/[a-z0-9][a-z0-9._-]{0,119}/[0-9a-f]{16}")
# Of one line: a terminal will show it.
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,1000}")

#: Groups of a spec whose fields are axes; `name` of a group is the axis of the group's own name.
_GROUPS = ("target", "task", "quantization", "shape")
#: What sizes are called, in the order in which they are read.
_SHORT = {name: option.short for name, option in OPTIONS.items() if option.short}
#: Begins what a recipe says of its model, which is not chosen.
_OF_MODEL = ("images.", "audio.")
#: Said first, without their name. What follows from other axes, or is so nearly always, is not said; nor is a file.
_FIRST = tuple(name for name, option in OPTIONS.items() if option.short == "")
_UNSAID = (
    *("task", "method", "continuous_batching", "comp_ctx_lengths", "qnn_config", "gguf_file"),
    *("patches", "merged", "window"),
)
_LONGEST = 96


# --- packages and notices ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One package, as far as it must be known to choose it.

    Args:
        path: Its folder in the remote: `packages/<variant>/<first 16 hex digits of its build key>`.
        manifest: SHA-256 of its manifest.json, 64 hex digits.
        model: Model id of its checkpoint, or the name of the folder that held it.
        model_type: Model type in the checkpoint's configuration.
        revision: Checkpoint commit, 40 hex digits; None for a folder.
        license: Licence of the checkpoint, as its card names it; None without one.
        size: Bytes of all its files but the manifest.
        finished: When its build ended: "2026-11-20T10:00:00Z".
        validated: How far it was proved; one of `qeff_zoo.package.manifest.VALIDATED`.
        signed: Whether a signature lies beside the manifest.
        axes: Values that distinguish packages of one model: sizes, precision, target, hardware.
        needs: Required software with version ranges: {"onnxruntime": ">=1.31"}.
        tested: Versions that it was compiled and compared with, by tool.
        proof: Result of the validation, in a sentence; None without a comparison, or from an older version.
    """

    path: str
    manifest: str
    model: str
    model_type: str
    revision: str | None
    license: str | None = None
    size: int
    finished: str
    validated: str
    signed: bool
    axes: Mapping[str, Any]
    needs: Mapping[str, str]
    tested: Mapping[str, str]
    proof: str | None = None

    @classmethod
    def of(cls, manifest: Mapping[str, Any], content: bytes, *, signed: bool) -> "Entry":
        """Describe a package.

        Args:
            manifest: Its manifest, checked.
            content: The bytes of its manifest.json.
            signed: Whether a signature goes with it.
        """
        return cls(
            path=package_path(manifest),
            manifest=hashlib.sha256(content).hexdigest(),
            model=model_of(manifest),
            model_type=manifest["model_type"],
            revision=source_in(manifest).get("revision"),
            license=manifest["license"],
            size=sum(file["size"] for file in manifest["files"]),
            finished=manifest["provenance"]["finished"][:19] + "Z",
            validated=manifest["validated"],
            signed=signed,
            axes=axes_of(manifest),
            needs=dict(manifest["target"]["needs"]),
            tested=tested_versions(manifest),
            proof=summary(manifest["validation"], manifest.get("costs", {})),
        )

    @property
    def key16(self) -> str:
        """The first 16 hex digits of the build key."""
        return self.path[-16:]

    @property
    def variant(self) -> str:
        """The readable part of its path."""
        return self.path.split("/")[1]


@dataclass(frozen=True)
class Notice:
    """What became known about a package after it was published.

    Args:
        state: "yanked" (not to be chosen any more), "known_bad" (wrong), or "superseded" (another is better).
        reason: One line for people.
        instead: Path of the package to take in its place.
    """

    state: str
    reason: str
    instead: str | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"A notice's state is {self.state!r}; expected one of {STATES}.")
        if not _TEXT.fullmatch(self.reason):
            raise ValueError(f"A notice's reason is {self.reason!r}; expected one line of text.")
        if self.instead is not None and not _PATH.fullmatch(self.instead):
            raise ValueError(f"A notice's instead is {self.instead!r}; expected a package's path.")


def model_of(manifest: Mapping[str, Any]) -> str:
    """Return the model that the index lists a package under: its checkpoint's id, or the name of its folder."""
    return str(source_in(manifest).get("model_id") or base_name(manifest))


def package_path(manifest: Mapping[str, Any]) -> str:
    """Name the folder of a package in a remote: readable first, then unique."""
    key16 = manifest["build_key"].partition("-")[2][:16]
    return f"packages/{variant_name(axes_of(manifest))}/{key16}"


# --- what sets packages of one model apart -----------------------------------------------------


def axes_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a package was made for, by flat names.

    Args:
        manifest: Checked.

    Returns:
        Text, numbers, booleans, and lists of them.
    """
    axes: dict[str, Any] = {"target": manifest["target"]["name"], "task": manifest["task"]}
    for group in _GROUPS:
        members = manifest["spec"].get(group)
        axes |= dict(_flat(members, group)) if isinstance(members, Mapping) else {}
    if merged := adapters_in(manifest):
        axes["adapter"] = adapter_axis(merged)
    if heads := source_in(manifest, "speculator"):
        # What they compute is part of the key, and follows from them.
        axes = {name: value for name, value in axes.items() if not name.startswith("speculator.")}
        axes.pop("hidden_states", None)
        axes["draft_heads"] = digest_axis(heads)
    # Of the target's lowering, and of what takes adapters: nobody asks for another than the newest.
    for name in ("revision", "lora_rev"):
        axes.pop(name, None)
    if file := manifest.get("weights", {}).get("gguf_file"):
        axes["gguf_file"] = file  # one of several that a repository may have
    return axes


def _flat(members: Mapping[str, Any], group: str) -> Iterator[tuple[str, Any]]:
    for name, value in members.items():
        axis = group if name == "name" else name
        if isinstance(value, Mapping):
            yield from _flat({f"{name}.{inner}": item for inner, item in value.items()}, group)
        elif isinstance(value, list) and any(isinstance(item, list | Mapping) for item in value):
            continue  # too rich to be compared, and part of the key
        else:
            yield axis, value


def variant_name(axes: Mapping[str, Any]) -> str:
    """Name a package's folder so that people see what it is.

    Args:
        axes: From `axes_of`.
    """
    said = [_slug(axes[name]) for name in _FIRST if name in axes]
    sizes = [f"{short}{_slug(axes[name])}" for name, short in _SHORT.items() if axes.get(name)]
    if axes.get("full_batch_size"):  # the batch of one call then follows from the slots
        sizes = [size for size in sizes if not size.startswith("bs")]
    rest = {*axes} - {*_FIRST, *_UNSAID, *_SHORT}
    others = [_said(name, axes[name]) for name in sorted(rest) if not name.startswith(_OF_MODEL)]
    text = "-".join(part for part in (*said, *others, *sizes) if part)
    return text[:_LONGEST].rstrip("-._") or "package"


def _said(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _slug(name) if value else ""
    return _slug(value) if isinstance(value, str) else f"{_slug(name)}{_slug(value)}"


def _slug(value: Any) -> str:
    text = ".".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^a-z0-9.]+", "_", text.lower()).strip("._")


def tested_versions(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of what a package was compiled by and needs, as they were when it was made."""
    tools = manifest["spec"].get("toolchain", {})
    tested = {name: str(tools[name]) for name in manifest["target"]["needs"] if name in tools}
    for program in manifest["programs"]:
        compiler = program["compiled_from"]["compiler"]
        if "name" in compiler and "version" in compiler:
            tested[str(compiler["name"])] = str(compiler["version"])
    return tested


# --- the index ---------------------------------------------------------------------------------


def _unread(prefix: str, _: Reference) -> Node:
    raise ValueError(f"The index has a file of the prefix {prefix!r}, and nothing reads it here.")


@dataclass(frozen=True)
class Index:
    """All packages of a remote.

    Args:
        serial: Raised by every change, so that an older index is known for one.
        tree: Packages and notices; where they are many, references to the files that have them.
        remotes: Canonical URLs of the remotes whose index it is; a signed one names them, so that no other remote's
            takes its place. Older versions wrote none.
        signature: Over the root as it was read, which has the digest of every other file; a changed one has none.
        warnings: Issues that the trust policy lets pass, a sentence each.
        read: Reads the files that the tree refers to.
    """

    serial: int = 0
    tree: Node = field(default_factory=Leaf)
    remotes: tuple[str, ...] = ()
    signature: bytes | None = field(default=None, compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    read: Read = field(default=_unread, compare=False, repr=False)

    def of_model(self, model_id: str) -> tuple[Entry, ...]:
        """List the packages of one model. At most its leaf is read, and the pages on the way.

        Raises:
            RemoteError: A file of the index cannot be read, or differs from its reference.
        """
        leaf = self.leaf_of(model_id)
        return tuple(entry for entry in leaf.entries if entry.model == model_id)

    def leaf_of(self, model_id: str) -> Leaf:
        """Return the packages of one model and of some others, with the notices about them."""
        return leaf_of(self.tree, model_id, self.read)

    def leaves(self) -> Iterator[Leaf]:
        """List all packages with their notices, leaf by leaf, with one of them in memory at a time."""
        return leaves(self.tree, self.read)

    @property
    def packages(self) -> int:
        """Number of packages; nothing is read for it."""
        return self.tree.packages

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All packages, from every file of the index; of one leaf in the order of their publication."""
        return tuple(entry for leaf in self.leaves() for entry in leaf.entries)

    @property
    def notices(self) -> Mapping[str, Notice]:
        """All notices, from every file of the index, by a package's path."""
        return {path: notice for leaf in self.leaves() for path, notice in leaf.notices.items()}

    @property
    def models(self) -> tuple[str, ...]:
        """The model ids that there are packages of, from every file of the index, sorted."""
        return tuple(sorted(self.each_model()))

    def each_model(self) -> Iterator[str]:
        """List the models, each once; no more files are read than that needs."""
        for leaf in self.leaves():
            yield from {entry.model: None for entry in leaf.entries}

    def find(self, is_meant: Callable[[Entry], bool], model: str | None = None) -> list[Entry]:
        """List the packages that fulfil a condition.

        Args:
            is_meant: Condition.
            model: Model of the packages; None to search every file of the index.
        """
        searched = self.leaves() if model is None else [Leaf(self.of_model(model))]
        return [entry for leaf in searched for entry in leaf.entries if is_meant(entry)]

    def with_entry(self, entry: Entry) -> "Index":
        """Add a package or replace its entry; return the same index if the entry is unchanged."""

        def change(leaf: Leaf) -> Leaf:
            if entry in leaf.entries:
                return leaf
            others = (other for other in leaf.entries if other.path != entry.path)
            return replace(leaf, entries=(*others, entry))

        return self._changed(entry.model, change)

    def with_notice(self, path: str, notice: Notice | None, model: str | None = None) -> "Index":
        """Set the notice about a package, or clear it with None; return the same index if it is unchanged.

        Args:
            path: Path of a package in the index.
            notice: Notice to publish.
            model: Model of the package; None to search every file of the index for it.

        Raises:
            ValueError: There is no such package here, or the notice names one that is not here.
        """
        entry = self._at(path, model)
        if notice and notice.instead is not None and not self.has(notice.instead, entry.model):
            raise _not_here(notice.instead)

        def change(leaf: Leaf) -> Leaf:
            others = {key: value for key, value in leaf.notices.items() if key != path}
            notices = {**others, path: notice} if notice else others
            return leaf if notices == leaf.notices else replace(leaf, notices=notices)

        return self._changed(entry.model, change)

    def has(self, path: str, model: str) -> bool:
        """Whether a package is in the index.

        Args:
            path: Path of the package.
            model: Model whose packages are searched first.
        """
        searched = (
            self.of_model(model),
            (entry for leaf in self.leaves() for entry in leaf.entries),
        )
        return any(entry.path == path for entries in searched for entry in entries)

    def _at(self, path: str, model: str | None) -> Entry:
        found = self.find(lambda entry: entry.path == path, model)
        if not found:
            raise _not_here(path)
        return found[0]

    def _changed(self, model: str, change: Callable[[Leaf], Leaf]) -> "Index":
        tree = with_leaf(self.tree, model, change, self.read)
        if tree is self.tree:
            return self
        return replace(self, serial=self.serial + 1, tree=tree, signature=None)


def _not_here(path: str) -> ValueError:
    return ValueError(f"{path!r} is not a package of the index.")
