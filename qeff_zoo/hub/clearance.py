# SPDX-License-Identifier: Apache-2.0
"""Whether a package may leave this machine at all.

In: a package. Out: everything that forbids it, one sentence each. Whether everyone may see it is `licences`' question.
"""

from collections.abc import Iterator

from qeff_zoo.disk.digests import Progress
from qeff_zoo.errors import TrustError
from qeff_zoo.hub.leaks import leaks
from qeff_zoo.hub.trust import claimed_key
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME


def objections(package: Package, progress: Progress | None = None) -> list[str]:
    """Read all of a package, and say what forbids to publish it anywhere.

    Args:
        package: Any.
        progress: Told of the bytes read; all together are the package's size.

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
        claimed_key((package.path / MANIFEST_NAME).read_bytes(), signature.read_bytes())
    except TrustError as error:
        yield f"{SIGNATURE_NAME} does not belong to it: {error}"


def _leaks(package: Package) -> Iterator[str]:
    for name in [*(file["path"] for file in package.manifest["files"]), MANIFEST_NAME]:
        path = package.path / name
        if path.is_symlink() or not path.is_file():
            continue  # `verify` has said so
        for line, kind in leaks(path):
            yield f"{name}:{line} holds what looks like {kind}. Revoke it, and build again without it."
