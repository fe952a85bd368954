# SPDX-License-Identifier: Apache-2.0
"""Entries of an index: a package, as far as it must be known to choose it, and notices published about it since.

In: the manifest of a package. Out: an `Entry`, its path in a remote, and the axes that distinguish packages of one
model.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qeff_zoo.package.manifest import adapter_axis, adapters_in, base_name, digest_axis, source_in
from qeff_zoo.package.proof import summary
from qeff_zoo.plan.request import OPTIONS

#: What a notice may say of a package, in the order of severity.
STATES = ("known_bad", "yanked", "superseded")

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
        path: Folder in the remote: `packages/<variant>/<first 16 hex digits of its build key>`.
        manifest: SHA-256 of its manifest.json, 64 hex digits.
        model: Model id of its checkpoint, or the name of the folder that held it.
        model_type: Model type in the checkpoint's configuration.
        revision: Checkpoint commit, 40 hex digits; None for a folder.
        license: Licence of the checkpoint, as its card names it; None without one.
        size: Bytes of all its files but the manifest.
        finished: When its build ended: "2026-11-20T10:00:00Z".
        validated: Level of validation; one of `qeff_zoo.package.manifest.VALIDATED`.
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
            manifest: Checked manifest.
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
    return f"packages/{variant_name(axes_of(manifest))}/{key16_of(manifest['build_key'])}"


def key16_of(build_key: str) -> str:
    """Return the first 16 hex digits of a build key."""
    return build_key.partition("-")[2][:16]


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
    # Of the target's lowering, and of what takes adapters: only the newest is requested.
    for name in ("revision", "lora_rev", "float8"):
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
        axes: Axes from `axes_of`.
    """
    slugs = [_slug(axes[name]) for name in _FIRST if name in axes]
    sizes = [f"{short}{_slug(axes[name])}" for name, short in _SHORT.items() if axes.get(name)]
    if axes.get("full_batch_size"):  # the batch of one call then follows from the slots
        sizes = [size for size in sizes if not size.startswith("bs")]
    rest = {*axes} - {*_FIRST, *_UNSAID, *_SHORT}
    others = [
        _axis_slug(name, axes[name]) for name in sorted(rest) if not name.startswith(_OF_MODEL)
    ]
    text = "-".join(part for part in (*slugs, *others, *sizes) if part)
    return text[:_LONGEST].rstrip("-._") or "package"


def _axis_slug(name: str, value: Any) -> str:
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
