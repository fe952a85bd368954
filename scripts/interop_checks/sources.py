# SPDX-License-Identifier: Apache-2.0
"""Source distributions of the package registry, unpacked once."""

import json
import shutil
import sys
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

_INDEX = "https://pypi.org/pypi/{}/json"


def unpacked(distribution: str, members: Sequence[str], folder: Path) -> Path:
    """Return the root of a source distribution, downloaded once.

    Args:
        distribution: Name in the package registry.
        members: Parts of the paths that are unpacked.
        folder: Folder of the unpacked distributions.
    """
    root = folder / distribution
    if not root.exists():
        folder.mkdir(parents=True, exist_ok=True)
        index = _INDEX.format(distribution)
        with urllib.request.urlopen(index) as answer:
            files = json.load(answer)["urls"]
        url = next(one["url"] for one in files if one["packagetype"] == "sdist")
        archive = folder / f"{distribution}.tar.gz"
        print(f"Downloading {archive.name}", file=sys.stderr)
        whole = urllib.parse.urljoin(index, url)  # a mirror's URLs are relative
        with urllib.request.urlopen(whole) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        staged = folder / f"{distribution}.part"
        shutil.rmtree(staged, ignore_errors=True)
        with tarfile.open(archive) as packed:
            wanted = [one for one in packed if any(part in f"/{one.name}" for part in members)]
            packed.extractall(staged, wanted, filter="data")
        (top,) = staged.iterdir()
        top.rename(root)
        staged.rmdir()
        archive.unlink()
    return root
