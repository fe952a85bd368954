# SPDX-License-Identifier: Apache-2.0
"""Pages of models: `ORG/NAME.html` for the Hub id `ORG/NAME`, and a safe path for any other name.

Our own files and folders contain a dot, or begin with `_`, which no organization of a page does. Many web servers also
find the page without its suffix, at the path of the Hub id.
"""

import hashlib
import re
from collections.abc import Iterable

#: Folder of the pages of models without a Hub id.
LOCAL = "local"
#: Folder of everything that is no page of a model.
OWN = "_"
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_LONGEST = 60


def is_hub_id(name: str) -> bool:
    """Whether a name can be a model id of the Hub, and the path of a page as it is."""
    return (
        _HUB_ID.fullmatch(name) is not None
        and ".." not in name
        and not name.lower().endswith((".", "/index"))
    )


def assign(names: Iterable[str]) -> dict[str, str]:
    """Return the page of each name, without suffix; no two are the same on a file system that ignores case.

    Args:
        names: Names of models, which may be any text.

    Example:
        >>> assign(["org/model", "my model"])
        {'my model': 'local/my-model-27b4c6e9', 'org/model': 'org/model'}
    """
    pages: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted({*names}, key=lambda name: (not is_hub_id(name), name)):
        page = name if is_hub_id(name) else _local(name)
        while page.lower() in taken:
            page = f"{page}-{_digest(name)}"
        taken.add(page.lower())
        pages[name] = page
    return dict(sorted(pages.items()))


def _local(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:_LONGEST]
    if is_hub_id(page := f"{LOCAL}/{name}"):
        return page
    return f"{LOCAL}/{slug}-{_digest(name)}" if slug else f"{LOCAL}/{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]
