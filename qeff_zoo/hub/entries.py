# SPDX-License-Identifier: Apache-2.0
"""What an index says of one package: enough to choose it, and what became known about it later.

In: a manifest. Out: an `Entry`, a `Notice`, and where a package lies in a remote.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qeff_zoo.hub.variants import axes_of, tested_versions, variant_name
from qeff_zoo.package.manifest import source_in

#: What a notice may say of a package, in the order of severity.
STATES = ("known_bad", "yanked", "superseded")
#: Where a package lies in a remote.
PATH = re.compile(r"packages/[a-z0-9][a-z0-9._-]{0,119}/[0-9a-f]{16}")

# Of one line: a terminal will show it.
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,1000}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One package, as far as it must be known to choose it.

    Args:
        path: Its folder in the remote: `packages/<variant>/<first 16 hex digits of its build key>`.
        manifest: SHA-256 of its manifest.json, 64 hex digits.
        model: Model id of its checkpoint, or the name of the folder that held it.
        model_type: Of the checkpoint's configuration.
        revision: Of the checkpoint, 40 hex digits; None for a folder.
        license: Of the checkpoint, as its card names it; None if it does not.
        size: Bytes of all its files but the manifest.
        finished: When its build ended: "2026-11-20T10:00:00Z".
        validated: How far it was proved; one of `qeff_zoo.package.manifest.VALIDATED`.
        signed: Whether a signature lies beside the manifest.
        axes: What sets it apart from other packages of its model: sizes, precision, target, hardware.
        needs: What must be installed to run it, and which versions: {"onnxruntime": ">=1.31"}.
        tested: Versions that it was compiled and compared with, by tool.
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
            model=source.get("model_id") or manifest["name"],
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
        if not is_text(self.reason):
            raise ValueError(f"A notice's reason is {self.reason!r}; expected one line of text.")
        if self.instead is not None and not PATH.fullmatch(self.instead):
            raise ValueError(f"A notice's instead is {self.instead!r}; expected a package's path.")


def package_path(manifest: Mapping[str, Any]) -> str:
    """Name the folder of a package in a remote: readable first, then unique."""
    key16 = manifest["build_key"].partition("-")[2][:16]
    return f"packages/{variant_name(axes_of(manifest))}/{key16}"


def is_text(value: Any) -> bool:
    """Tell whether a value is text of one line, which may be shown to people."""
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None
