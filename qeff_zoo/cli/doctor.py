# SPDX-License-Identifier: Apache-2.0
"""Capabilities of this machine: packages, processor, memory, disk, Hub settings, SDKs.

Input: the machine. Output: findings. No heavy module is imported, nothing is installed, written or contacted, and no
secret is read. A failed check is a finding, too.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from urllib.parse import urlsplit

from qeff_zoo import targets
from qeff_zoo.disk.room import free_bytes, nearest_existing
from qeff_zoo.settings import offline_settings
from qeff_zoo.store import default_root
from qeff_zoo.targets.base import Finding

_GIGABYTE = 1e9
_LOW_MEMORY, _LOW_DISK = 2 * _GIGABYTE, 5 * _GIGABYTE
_PROC = Path("/proc")
_PURPOSES: Mapping[str, str] = {
    "run": "running packages",
    "build": "building and validating packages",
    "timm": "models with timm encoders",
    "qnn": "compiling for Qualcomm HTP",
    "test": "running the tests",
    "check": "checking the code",
}
#: By machine: flags of /proc/cpuinfo that ONNX Runtime's kernels use, best last, and the one that fast kernels require.
_FLAGS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "x86_64": (
        ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
        "avx2",
    ),
    "aarch64": (("asimd", "asimddp", "i8mm", "bf16", "sve"), "asimddp"),
}

#: Instruction sets of x86-64 that sum products of int8 in 32 bits, see `qeff_zoo.targets.ort.processor`.
_SUM_INTEGERS = {"avx_vnni", "avx512_vnni", "amx_int8"}


def examine(*, proc: Path = _PROC) -> list[Finding]:
    """Examine the machine.

    Args:
        proc: Path where Linux describes the machine.

    Returns:
        Findings, in a fixed number and order.

    Example:
        >>> [finding.name for finding in examine()][:2]
        ['python', 'qeff-zoo']
    """
    return [
        _python(),
        Finding(name="qeff-zoo", status="ok", detail=version("qeff-zoo")),
        *_extras(),
        _processor(proc),
        _memory(proc),
        _disk(default_root()),
        _endpoint(),
        _token(),
        *(finding for name in targets.NAMES for finding in targets.find(name).examine()),
    ]


def _python() -> Finding:
    from packaging.specifiers import SpecifierSet

    running = platform.python_version()
    wanted = metadata("qeff-zoo")["Requires-Python"] or ""
    detail = (
        f"{platform.python_implementation()} {running} on {platform.system()} {platform.machine()}"
    )
    if SpecifierSet(wanted).contains(running, prereleases=True):
        return Finding(name="python", status="ok", detail=detail)
    return Finding(name="python", status="warn", detail=detail, advice=f"Use Python {wanted}.")


def _extras() -> Iterator[Finding]:
    """Compare installed packages with the ranges of every extra; packages of no extra come first, as "core"."""
    from packaging.requirements import Requirement

    wanted: dict[str, list[Requirement]] = {"": []}
    wanted |= {extra: [] for extra in metadata("qeff-zoo").get_all("Provides-Extra") or ()}
    for requirement in map(Requirement, requires("qeff-zoo") or ()):
        for extra, members in wanted.items():
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and (not always or not extra) and requirement.name != "qeff-zoo":
                members.append(requirement)
    for extra, members in wanted.items():
        states = [(member, _installed(member.name)) for member in members]
        absent = [member.name for member, found in states if found is None]
        wrong = [
            f"{member.name} {found} (expected {member.specifier})"
            for member, found in states
            if found and not member.specifier.contains(found, prereleases=True)
        ]
        present = [f"{member.name} {found}" for member, found in states if found]
        yield _extra(extra, present, absent, wrong)


def _extra(extra: str, present: list[str], absent: list[str], wrong: list[str]) -> Finding:
    name = f"extra {extra}" if extra else "core packages"
    package = f"qeff-zoo[{extra}]" if extra else "qeff-zoo"
    purpose = f" for {_PURPOSES[extra]}" if extra in _PURPOSES else ""
    advice = f"Run `pip install '{package}'`{purpose}."
    if wrong:
        return Finding(name=name, status="warn", detail=", ".join(wrong), advice=advice)
    if absent:
        return Finding(
            name=name, status="missing", detail=f"without {', '.join(absent)}", advice=advice
        )
    return Finding(name=name, status="ok", detail=", ".join(present) or "needs nothing")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor_name() -> str:
    """Return the processor of this machine, its number of cores and useful instruction sets."""
    return _processor(_PROC).detail


def _processor(proc: Path) -> Finding:
    text = _read(proc / "cpuinfo")
    pairs: list[tuple[str, str]] = re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.MULTILINE)
    fields = dict(pairs)
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    useful, needed = _FLAGS.get(platform.machine(), ((), ""))
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    model = fields.get("model name") or platform.processor() or platform.machine()
    present = [flag for flag in useful if flag in flags]
    detail = f"{model}, {cores} cores, {' '.join(present) or 'instruction sets unknown'}"
    if needed == "avx2" and flags and flags.isdisjoint(_SUM_INTEGERS):
        detail += "; without VNNI and AMX --weights w8a8 is no faster than int8"
    if flags and needed and needed not in flags:
        return Finding(
            name="processor",
            status="warn",
            detail=detail,
            advice=f"Generation will be slow: ONNX Runtime's fast kernels need {needed}.",
        )
    return Finding(name="processor", status="ok", detail=detail)


def _memory(proc: Path) -> Finding:
    kilobytes = {
        name: int(size)
        for name, size in re.findall(r"^(\w+):\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    }
    if not {"MemTotal", "MemAvailable"} <= set(kilobytes):
        return Finding(name="memory", status="ok", detail="unknown on this system")
    total, free = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    detail = f"{free / _GIGABYTE:.1f} of {total / _GIGABYTE:.1f} GB free"
    if free < _LOW_MEMORY:
        return Finding(
            name="memory",
            status="warn",
            detail=detail,
            advice="A build takes up to 1.5 GB, and running needs the package's size. Close other programs.",
        )
    return Finding(name="memory", status="ok", detail=detail)


def _disk(root: Path) -> Finding:
    there = nearest_existing(root)
    try:
        free = free_bytes(there)
    except OSError as error:
        return _bad_store(f"{root}: {error.strerror}")
    detail = f"{root}, {free / _GIGABYTE:.1f} GB free"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return _bad_store(f"{detail}, {there} cannot be written")
    if free < _LOW_DISK:
        advice = "Run `qeff-zoo cache gc`, or set QEFF_HOME to a larger disk."
        return Finding(name="store", status="warn", detail=detail, advice=advice)
    return Finding(name="store", status="ok", detail=detail)


def _bad_store(detail: str) -> Finding:
    return Finding(
        name="store",
        status="warn",
        detail=detail,
        advice="Set QEFF_HOME to a folder that you may write.",
    )


def _endpoint() -> Finding:
    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        advice = "Set HF_ENDPOINT to a URL like https://huggingface.co."
        return Finding(name="hub", status="warn", detail="HF_ENDPOINT is not a URL", advice=advice)
    endpoint = (
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password
    )
    if names := offline_settings():
        return Finding(
            name="hub",
            status="warn",
            detail=f"{endpoint}, but offline ({', '.join(names)})",
            advice=f"Unset {' and '.join(names)} to download models.",
        )
    return Finding(name="hub", status="ok", detail=endpoint)


def _token() -> Finding:
    """Return whether there is a token, and its location; blanks are none, as for huggingface_hub."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name, "").strip():
            return Finding(name="hub token", status="ok", detail=f"in {name}")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("HF_HOME", cache / "huggingface"))
    path = Path(os.environ.get("HF_TOKEN_PATH", home / "token")).expanduser()
    if path.is_file() and _read(path).strip():
        return Finding(name="hub token", status="ok", detail=f"in {path}")
    advice = "Run `hf auth login` for gated and private models, and to publish; others need none."
    return Finding(name="hub token", status="missing", detail="none", advice=advice)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
