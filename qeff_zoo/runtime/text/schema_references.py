# SPDX-License-Identifier: Apache-2.0
"""References of JSON Schemas within their document (`$ref`), JSON Pointers in URI fragments.

Source: https://www.rfc-editor.org/rfc/rfc6901
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def resolved(reference: Any, root: Any) -> Any:
    """Return the part of a document that a reference names; None if there is none.

    Args:
        reference: Value of `$ref`, such as "#/$defs/name" or "#/allOf/0".
        root: The document.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    start, *steps = unquote(reference[1:]).split("/")
    part = None if start else root
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(key)
        elif isinstance(part, list) and _INDEX.fullmatch(key) and int(key) < len(part):
            part = part[int(key)]
        else:
            return None
    return part
