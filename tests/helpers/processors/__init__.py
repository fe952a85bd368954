# SPDX-License-Identifier: Apache-2.0
"""Other processors: an x86-64 one runs a program as if it had AVX2 and nothing newer.

    PYTHONPATH=tests/helpers python -m processors COMMAND …

ONNX Runtime has no setting for it, and an emulator takes a hundred times as long. So the program loads a copy of ONNX
Runtime whose `cpuid` instructions are breakpoints, and `preload.c` answers those. Other libraries have settings.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
#: What takes a copy apart, and what compiles the rest.
_TOOLS = ("objdump", "cc")
_CPUID, _BREAKPOINT = b"\x0f\xa2", b"\xcc\x90"
#: Words of /proc/cpuinfo that a processor with AVX2 alone lacks.
_NEWER = re.compile(r"\b(avx512|avx_vnni|avx_ifma|avx_ne|avx10|amx_)\w*")


def obstacle() -> str:
    """Return why this machine cannot run programs as with AVX2 alone, or need not; nothing if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"{platform.system()} on {platform.machine()} is not Linux on x86_64"
    if not _NEWER.search(_described()):
        return "this processor has no more"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"there is no {' and no '.join(missing)}" if missing else ""


def avx2() -> dict[str, str]:
    """Return the environment of a program that has AVX2 and nothing newer; makes the copy once an environment."""
    runtime, source = _onnxruntime(), _FOLDER / "preload.c"
    digest = hashlib.sha256(source.read_bytes() + Path(__file__).read_bytes())
    digest.update(str(runtime.stat()).encode())
    made = Path(sys.prefix) / f"qeff-zoo-avx2-{digest.hexdigest()[:16]}"
    if not made.is_dir():
        new = made.with_name(f"{made.name}.{os.getpid()}")
        _make(new, runtime, source)
        try:
            new.rename(made)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(made), *([before] if before else [])]),
        "LD_PRELOAD": str(made / "preload.so"),
        "AS_PROCESSOR_CPUINFO": str(made / "cpuinfo"),
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    }


def _described() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")


def _onnxruntime() -> Path:
    """Return the library of ONNX Runtime's package."""
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (library,) = (Path(spec.origin).parent / "capi").glob("onnxruntime_pybind11_state.*.so")
    return library


def _make(folder: Path, runtime: Path, source: Path) -> None:
    copy = folder / "onnxruntime"
    package = runtime.parent.parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path != runtime:
            target = copy / path.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    (copy / runtime.relative_to(package)).write_bytes(_with_breakpoints(runtime))
    (folder / "cpuinfo").write_text(_NEWER.sub("", _described()), encoding="utf-8")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(folder / "preload.so"), str(source)]
    subprocess.run([*command, "-ldl"], check=True)


def _with_breakpoints(library: Path) -> bytes:
    """Return a library with a breakpoint in place of each `cpuid`."""
    content = bytearray(library.read_bytes())
    listed = subprocess.run(
        ["objdump", "-d", str(library)], check=True, capture_output=True, text=True
    ).stdout
    places = re.findall(r"^\s*([0-9a-f]+):\s+0f a2\s+cpuid", listed, re.MULTILINE)
    headers = subprocess.run(
        ["objdump", "-h", "-j", ".text", str(library)], check=True, capture_output=True, text=True
    ).stdout
    section = re.search(r"\.text\s+\w+\s+(\w+)\s+\w+\s+(\w+)", headers)
    assert section is not None
    assert places
    shift = int(section[2], 16) - int(section[1], 16)
    for place in places:
        start = int(place, 16) + shift
        assert content[start : start + 2] == _CPUID
        content[start : start + 2] = _BREAKPOINT
    return bytes(content)
