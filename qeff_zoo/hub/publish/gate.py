# SPDX-License-Identifier: Apache-2.0
"""Check of a package before it is published: licence, gated source, and visibility.

In: a package. Out: all obstacles to its publication, one sentence each; and a `Licence`, the verdict in words. The only
request to the Hub is whether the source is gated.
"""

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.hub_access import hub_token
from qeff_zoo.disk.digests import Progress
from qeff_zoo.disk.regular import open_regular, read_regular
from qeff_zoo.errors import RemoteError, TrustError
from qeff_zoo.hub.remotes.hub_api import hub_call
from qeff_zoo.hub.trust import claimed_key
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, source_in


def objections(package: Package, progress: Progress | None = None) -> list[str]:
    """Read a whole package, and list the reasons that forbid to publish it.

    Args:
        package: Any.
        progress: Callback for the bytes read; all together are the package's size.

    Returns:
        One sentence each; none for a package that may go.
    """
    return [
        *_unproven(package),
        *_damage(package, progress),
        *_foreign_signature(package),
        *_leaks(package),
    ]


def _unproven(package: Package) -> Iterator[str]:
    manifest = package.manifest
    if package.dirty:
        yield "It was built from sources with changes that no commit has. Commit them, and build it again."
    if manifest["validated"] == "none":
        failed = sum(not check["passed"] for check in manifest["validation"])
        ran = f"{failed} checks failed" if failed else "nothing was compared with Hugging Face"
        yield f"It is not validated: {ran}. Expected evidence that it is right. Run `qeff-zoo validate` on it."
    elif not any(file["role"] == "evidence" for file in manifest["files"]):
        yield (
            f"It says that it is validated ({manifest['validated']!r}), but holds no file of evidence. Build it again."
        )


def _damage(package: Package, progress: Progress | None) -> Iterator[str]:
    for problem in package.verify(progress):
        yield f"It is not what its manifest says: {problem}. Build or pull it again."


def _foreign_signature(package: Package) -> Iterator[str]:
    signature = package.path / SIGNATURE_NAME
    if not signature.is_file():
        return
    try:
        claimed_key(read_regular(package.path / MANIFEST_NAME), read_regular(signature))
    except TrustError as error:
        yield f"{SIGNATURE_NAME} does not belong to it: {error}"


def _leaks(package: Package) -> Iterator[str]:
    for name in [*(file["path"] for file in package.manifest["files"]), MANIFEST_NAME]:
        path = package.path / name
        if path.is_symlink() or not path.is_file():
            continue  # `verify` has said so
        for line, kind in leaks(path):
            yield f"{name}:{line} holds what looks like {kind}. Revoke it, and build again without it."


# --- secrets that were left in a text ----------------------------------------------------------

_HEAD = 8192


def _token(prefix: str, rest: str) -> re.Pattern[bytes]:
    r"""Match a token that begins a word. What `\n` of a JSON string ends in is not part of one.

    The prefix comes first, and what precedes it is checked afterwards: that makes the search fast.
    """
    start = rf"{prefix}(?:(?<![A-Za-z0-9_-]{prefix})|(?<=\\[nrt]{prefix}))"
    return re.compile((start + rest).encode())


# Examples in manuals: hf_xxxxxxxx…, AKIA…EXAMPLE.
_MIXED, _NO_EXAMPLE = r"(?!([A-Za-z0-9])\1{7})", "(?![A-Z0-9]*EXAMPLE)"
# A sentence's words have no digits; tokens of this length nearly always do.
_WITH_DIGIT = r"(?=[\w.~+/-]*[0-9])"
_KINDS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("a Hugging Face token", _token("hf_", _MIXED + "[A-Za-z0-9]{30,}")),
    ("a Hugging Face token", _token("api_org_", "[A-Za-z0-9]{30,}")),
    ("an API key", _token("sk-", _WITH_DIGIT + "[A-Za-z0-9_-]{20,}")),
    ("an AWS access key", _token("AKIA", _NO_EXAMPLE + "[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("an AWS access key", _token("ASIA", "[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("a GitHub token", _token("ghp_", "[A-Za-z0-9]{36}")),
    ("a GitHub token", _token("ghs_", "[A-Za-z0-9]{36}")),
    ("a GitHub token", _token("github_pat_", "[A-Za-z0-9_]{22,}")),
    ("a private key", re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")),
    ("a bearer token", re.compile(rb"[Bb]earer[ \t]+" + _WITH_DIGIT.encode() + rb"[\w.~+/-]{16,}")),
    # Not a place for one, as in https://${USER}:${PASSWORD}@host, nor one that is blacked out.
    (
        "a URL with a password",
        re.compile(rb"://[^\s/:@\"'<>{}$]{0,100}:[^\s/:@\"'<>{}$*]{3,}@[\w\[]"),
    ),
)


def leaks(path: Path) -> Iterator[tuple[int, str]]:
    """Find what looks like a secret in a file, if that is a text.

    Args:
        path: The file; it may be of any size.

    Yields:
        The line, from 1 on, and what it holds: "a Hugging Face token".
    """
    with open_regular(path) as file:
        head = file.read(_HEAD)
        if not head or b"\0" in head:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            secrets = {
                (text[: match.start()].count(b"\n") + 1, kind)
                for kind, pattern in _KINDS
                for match in pattern.finditer(text)
            }
    yield from sorted(secrets)


# --- licences ----------------------------------------------------------------------------------

# As the Hub names them, which is as SPDX does, in small letters, for all but a few families.
_REDISTRIBUTABLE = """
afl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause
bsd-3-clause bsd-3-clause-clear bsl-1.0 cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0
cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m ecl-2.0 etalab-2.0 isc mit mpl-2.0
ms-pl ncsa odc-by openmdw-1.0 openrail openrail++ pddl postgresql unlicense wtfpl zlib
"""
# Some of these allow it too, under conditions that a person must look at.
_RESTRICTED = """
agpl-3.0 apple-amlr apple-ascl c-uda cc cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 deepfloyd-if-license epl-1.0 epl-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research intel-research lgpl lgpl-2.1 lgpl-3.0
lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c odbl ofl-1.1 osl-3.0 other unknown
"""

#: Licences under which everyone may have a copy of weights that were changed in form.
REDISTRIBUTABLE = frozenset(_REDISTRIBUTABLE.split())
#: All that the Hub knows by name.
KNOWN = REDISTRIBUTABLE | frozenset(_RESTRICTED.split())


@dataclass(frozen=True)
class Licence:
    """Whether a package may be published for everyone to see.

    Args:
        public: Whether it may.
        reason: Why, or why not, in words that end a sentence.
    """

    public: bool
    reason: str


def licence_of(manifest: Mapping[str, Any], *, check_gate: bool) -> Licence:
    """Judge what the source's licence allows.

    Args:
        manifest: Checked manifest of the package.
        check_gate: Whether to request from the Hub if the source is gated, unless the licence forbids publication.
    """
    stated = manifest["license"]
    licence = licence_of_text(stated)
    model_id = source_in(manifest).get("model_id")
    if not licence.public or model_id is None or not check_gate:
        return licence
    if closed := _closed(model_id):
        return Licence(False, closed)
    return Licence(True, f"its source's licence {stated!r} allows it, and {model_id} is not gated")


def licence_of_text(stated: str | None) -> Licence:
    """Judge a licence by its name alone.

    Args:
        stated: Name of the licence; None without one.
    """
    if stated is None:
        return Licence(False, "its source states no licence")
    if stated.lower() not in REDISTRIBUTABLE:
        return Licence(
            False, f"its source's licence {stated!r} is not known to allow everyone a copy"
        )
    return Licence(True, f"its source's licence {stated!r} allows it")


def _closed(model_id: str) -> str | None:
    """Return the reason why a source on the Hub is not public; None if it is."""
    unknown = f"it is not known whether {model_id} is gated"
    from huggingface_hub import HfApi

    try:
        info = hub_call(
            f"ask about {model_id!r}", lambda: HfApi(token=hub_token()).model_info(model_id)
        )
    except RemoteError as error:
        return f"{unknown}: {error}"
    if info.private:
        return f"{model_id} is private"
    if info.gated:
        return f"{model_id} is gated: its weights require accepted conditions"
    return None
