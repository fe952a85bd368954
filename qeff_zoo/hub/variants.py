# SPDX-License-Identifier: Apache-2.0
"""What sets packages of one model apart, as values with flat names, and how that reads as a folder's name.

In: a manifest. Out: its axes, `{"target": "ort", "weights": "int4", "ctx_len": 4096, …}`; a name such as
`ort-int4-pl128-cl4096-bs1`; the versions that it was tested with.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from qeff_zoo.choices import CHOICES

#: Groups of a spec whose fields are axes; `name` of a group is the axis of the group's own name.
_GROUPS = ("target", "task", "quantization", "shape")
#: What sizes are called, in the order in which they are read.
_SHORT = {name: choice.short for name, choice in CHOICES.items() if choice.short}
#: Said first, without their name. What follows from other axes, or is so nearly always, is not said.
_FIRST = tuple(name for name, choice in CHOICES.items() if choice.short == "")
_UNSAID = ("task", "method", "continuous_batching", "comp_ctx_lengths")
_LONGEST = 96


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
    # Of the target's lowering: nobody asks for another than the newest.
    axes.pop("revision", None)
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
    others = [_said(name, axes[name]) for name in sorted(rest)]
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
