# SPDX-License-Identifier: Apache-2.0
"""The Cloud AI SDK of this machine: its compiler and its versions."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from qeff_zoo.targets.base import Finding

#: Where Qualcomm's installers put it.
SDK = Path("/opt/qti-aic")
#: Names the compiler, in place of the SDK's own.
COMPILER_VARIABLE = "QAIC_COMPILE"


def version(part: str, sdk: Path = SDK) -> str:
    """Return the version of the Apps or the Platform SDK; "" if its file names none.

    Args:
        part: "apps" or "platform".
        sdk: Folder of the SDK.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ElementTree.ParseError: It is no XML.
    """
    root = ElementTree.fromstring((sdk / "versions" / f"{part}.xml").read_bytes())
    texts = {item.tag: (item.text or "").strip() for item in root.iter()}
    parts = [texts[tag] for tag in ("base_version", "build_id") if texts.get(tag)]
    parts = parts or [text for tag, text in texts.items() if "version" in tag and text][:1]
    return ".".join(parts)


def installed(part: str) -> str:
    """Return the version of the Apps or the Platform SDK, or "absent"."""
    try:
        return version(part) or "unknown"
    except FileNotFoundError:
        return "absent"
    except (OSError, ElementTree.ParseError):
        return "unknown"


def compiler(environment: Mapping[str, str] = os.environ, sdk: Path = SDK) -> Path | None:
    """Find qaic-compile, or qaic-exec of an older SDK: at the variable's path, else in the SDK.

    Args:
        environment: Variables.
        sdk: Folder of the SDK.
    """
    if named := environment.get(COMPILER_VARIABLE):
        program = shutil.which(named)
        return Path(program) if program else None
    every = (sdk / "exec" / name for name in ("qaic-compile", "qaic-exec"))
    return next((path for path in every if os.access(path, os.X_OK)), None)


def lacking(environment: Mapping[str, str] = os.environ, sdk: Path = SDK) -> str:
    """Describe a missing compiler.

    Args:
        environment: Variables.
        sdk: Folder of the SDK.
    """
    if named := environment.get(COMPILER_VARIABLE):
        return f"{COMPILER_VARIABLE} is {named!r}, which is no program"
    return f"there is no qaic-compile in {str(sdk / 'exec')!r}"


def examine(part: str) -> Finding:
    """Look for the Cloud AI Apps or Platform SDK, for `doctor`.

    Args:
        part: "apps" or "platform".
    """
    name, path = f"Cloud AI {part} SDK", SDK / "versions" / f"{part}.xml"
    if not path.is_file():
        purpose = "compile packages for Cloud AI 100 here"
        if part == "platform":
            purpose = "run on a Cloud AI 100 card"
        advice = f"Install the Qualcomm Cloud AI {part} SDK to {purpose}."
        return Finding(name=name, status="missing", detail=f"no {path}", advice=advice)
    try:
        detail = version(part, SDK)
    except (OSError, ElementTree.ParseError) as error:
        detail, problem = "", f"{path}: {error}"
    else:
        problem = "" if detail else f"{path} names no version"
    if problem:
        return Finding(name=name, status="warn", detail=problem, advice="Install the SDK again.")
    return Finding(name=name, status="ok", detail=detail)
