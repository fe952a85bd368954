# SPDX-License-Identifier: Apache-2.0
"""Index of a remote: one small file that lists every package, and the notices published about them since.

In: manifests, or the bytes of an index. Out: an `Index`, or its bytes. Nothing here touches the network or the disk.
Packages are never changed; what is learnt later, that one is bad or another is better, is a notice in the index.

The file is gzipped: a line of JSON, as `index.schema.json` says, and where somebody signed it a second line, the
signature over the first.

    {"schema": "qeff-index/2", "serial": 12, "remotes": ["hf://acme/zoo"],
     "packages": [{"path": "packages/ort-int4-…/0123456789abcdef", "manifest": <SHA-256>, "axes": {…}, …}, …],
     "notices": {path: {"state": "yanked", "reason": …, "instead": path}, …}}
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from qeff_zoo.errors import RemoteError
from qeff_zoo.package.manifest import (
    adapter_axis,
    adapters_in,
    base_name,
    digest_axis,
    parse,
    source_in,
)
from qeff_zoo.package.proof import summary
from qeff_zoo.package.schemas import validator
from qeff_zoo.plan.request import OPTIONS
from qeff_zoo.terminal.sanitize import shortened

INDEX_NAME = "index.json.gz"
#: What signatures call what it says.
SIGNED_NAME = "index.json"
SCHEMA_ID = "qeff-index/2"
_SCHEMA = Path(__file__).with_name("index.schema.json")
#: The most bytes of an index that are ever read, and the most that they may become.
INDEX_LIMIT = 8 << 20
_INFLATED_LIMIT = 32 << 20
#: The most values that an index may hold, so that no small file fills the memory. One package has about 30.
_MOST_VALUES = 1_000_000
#: What a notice may say of a package, in the order of severity.
STATES = ("known_bad", "yanked", "superseded")

#: A serial that no number of changes leads to; as in the schema.
SERIAL_LIMIT = 10**30

#: From the text of an index to its signature.
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
        source = source_in(manifest)
        return cls(
            path=package_path(manifest),
            manifest=hashlib.sha256(content).hexdigest(),
            model=source.get("model_id") or base_name(manifest),
            model_type=manifest["model_type"],
            revision=source.get("revision"),
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


# --- the index and its file --------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """All packages of a remote.

    Args:
        serial: Raised by every change, so that an older index is known for one.
        entries: One for each package, in the order of their publication.
        notices: By a package's path.
        remotes: Canonical URLs of the remotes whose index it is; a signed one names them, so that no other remote's
            takes its place. Older versions wrote none.
        signature: Over the index as it was read; a changed one has none.
        warnings: Issues that the trust policy lets pass, a sentence each.
    """

    serial: int = 0
    entries: tuple[Entry, ...] = ()
    notices: Mapping[str, Notice] = field(default_factory=lambda: MappingProxyType({}))
    remotes: tuple[str, ...] = ()
    signature: bytes | None = field(default=None, compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def with_entry(self, entry: Entry) -> "Index":
        """Add a package or replace its entry; return the same index if the entry is unchanged."""
        if entry in self.entries:
            return self
        others = tuple(other for other in self.entries if other.path != entry.path)
        return replace(self, serial=self.serial + 1, entries=(*others, entry), signature=None)

    def with_notice(self, path: str, notice: Notice | None) -> "Index":
        """Set the notice about a package, or clear it with None; return the same index if it is unchanged.

        Args:
            path: Path of a package in the index.
            notice: Notice to publish.

        Raises:
            ValueError: There is no such package here, or the notice names one that is not here.
        """
        known = {entry.path for entry in self.entries}
        for named in (path, notice.instead if notice else None):
            if named is not None and named not in known:
                raise ValueError(f"{named!r} is not a package of the index.")
        if self.notices.get(path) == notice:
            return self
        others = {key: value for key, value in self.notices.items() if key != path}
        notices = {**others, path: notice} if notice else others
        return replace(self, serial=self.serial + 1, notices=notices, signature=None)

    def of_model(self, model_id: str) -> tuple[Entry, ...]:
        """List the packages of one model."""
        return tuple(entry for entry in self.entries if entry.model == model_id)

    @property
    def models(self) -> tuple[str, ...]:
        """The model ids that there are packages of, sorted."""
        return tuple(sorted({entry.model for entry in self.entries}))


def encode(index: Index, sign: Sign | None = None) -> bytes:
    """Write an index; the same one always as the same bytes.

    Args:
        index: Index to encode.
        sign: Signs it; None for an index that is not signed.
    """
    content = {
        "schema": SCHEMA_ID,
        "serial": index.serial,
        "packages": [_as_json(entry) for entry in index.entries],
        "notices": {
            path: {name: value for name, value in asdict(notice).items() if value is not None}
            for path, notice in index.notices.items()
        },
        **({"remotes": list(index.remotes)} if index.remotes else {}),
    }
    text = _dump(content)
    lines = [text] if sign is None else [text, sign(text)]
    return gzip.compress(b"\n".join(lines), compresslevel=9, mtime=0)


def _as_json(entry: Entry) -> dict[str, Any]:
    values = {each.name: getattr(entry, each.name) for each in fields(Entry)}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name != "proof" or value
    }


def _dump(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def decode(content: bytes, *, known: bool = False) -> Index:
    """Read an index that anyone may have written.

    Args:
        content: Its bytes.
        known: They were read and checked before.

    Raises:
        RemoteError: The file is not an index, has an unknown version, or lists a path outside `packages/`.
    """
    try:
        text, signature = parts(content)
        if not known and sum(map(text.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")  # noqa: TRY301
        found = json.loads(text) if known else parse(text)
    except (ValueError, zlib.error) as error:
        raise _malformed(str(error)) from error
    if found.get("schema") != SCHEMA_ID:
        raise RemoteError(
            f"The index has schema {found.get('schema')!r:.100}; expected {SCHEMA_ID!r}. Install a newer qeff-zoo, or "
            "have the index written by this one."
        )
    if not known and (problem := next(validator(_SCHEMA).iter_errors(found), None)):
        raise _malformed(f"{problem.json_path} {shortened(problem.message)}")
    entries = tuple(map(_entry, found["packages"]))
    if len({entry.path for entry in entries}) != len(entries):
        raise _malformed("it lists one path twice")
    notices = {path: Notice(**notice) for path, notice in found["notices"].items()}
    remotes = tuple(found.get("remotes", ()))
    return Index(found["serial"], entries, MappingProxyType(notices), remotes, signature)


def _entry(package: dict[str, Any]) -> Entry:
    """Do what `Entry(**package)` does, at a sixth of its time: there may be thousands, of which few are looked at."""
    entry = object.__new__(Entry)
    vars(entry).update(package)
    return entry


def parts(content: bytes) -> tuple[bytes, bytes | None]:
    """Split the file of an index into its content and the signature over it; None for no signature.

    Args:
        content: Its bytes.

    Raises:
        ValueError: They are too many, or become too many.
        zlib.error: They are not gzipped.
    """
    text, signed, signature = _inflated(content).partition(b"\n")
    return text, signature if signed else None


def _inflated(content: bytes) -> bytes:
    """Undo gzip, within a bound that no compression can lead beyond."""
    if len(content) > INDEX_LIMIT:
        raise ValueError(f"it has more than {INDEX_LIMIT:,} bytes")
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    inflated = stream.decompress(content, _INFLATED_LIMIT + 1)
    if len(inflated) > _INFLATED_LIMIT:
        raise ValueError(f"it grows to more than {_INFLATED_LIMIT:,} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is cut short, or something follows it")
    return inflated


def _malformed(why: str) -> RemoteError:
    return RemoteError(
        f"The index cannot be read: {why}. Expected what `qeff-zoo publish` writes. Publish to the remote again, or "
        "take another remote."
    )
