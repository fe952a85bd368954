# SPDX-License-Identifier: Apache-2.0
"""The script that runs a compiler of Cloud AI 100 wherever its SDK is, and running that here.

In: the location and command of a compiler, and its arguments for each program. Out: QPCs, or none where one failed.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from string import Template

from qeff_zoo.errors import CompileError
from qeff_zoo.package.prepared import NOTE, PROGRAM, SCRIPT, SUMS
from qeff_zoo.targets import engines

LOG = "compile.log"
_TAIL = 20  # lines of a log

_SCRIPT = Template(r"""#!/usr/bin/env bash
# Compiles what lies here for Cloud AI 100. $after
set -euo pipefail

fail() { echo "$script: $$*" >&2; exit 1; }
logged() { "$$@" 2>&1 | tee -a $log >&2; }
vacant() { [ ! -e "$$1" ] || fail "'$$1' is there already; expected no such folder. Move it away, or remove it."; }

$compiler

compile() { # folder of the QPC, then the compiler's arguments
  local qpc=$$1 partial=$$1.partial
  shift
  rm -rf "$$partial"
  mkdir -p "$$(dirname "$$qpc")"
  compile_into "$$partial" "$$@"
  [ -s "$$partial/$program" ] || fail "The compiler wrote no $program; expected one in '$$partial'. See $log."
  printf '{"schema": "qeff-compiled/1", "sums": "%s", "compiler": "%s", "version": "%s", "platform": "%s"}\n' \
    "$$sums" "$$name" "$$version" "$$platform" > "$$partial/$note"
  mv "$$partial" "$$qpc"
}

cd "$$(dirname "$${BASH_SOURCE[0]}")"
sums=
if [ -e $sums_file ]; then
  sha256sum --check --quiet --strict $sums_file >&2 || fail "Files differ from what was prepared. Copy it again."
  sums=$$(sha256sum $sums_file | cut -d ' ' -f 1)
fi
: > $log
$commands
""")


_ADOPT = "Then make the package where qeff-zoo is: qeff-zoo adopt FOLDER FOLDER/qpc"


def script(
    compiler: str, qpcs: Sequence[str], commands: Sequence[Sequence[str]], *, after: str = _ADOPT
) -> str:
    """Write the script that compiles every program of a folder, wherever the SDK is.

    Args:
        compiler: Lines of bash, run where the caller is: they set `name`, `version` and `platform`, and define
            `compile_into`, with the folder to write to and the compiler's arguments. They may use `fail` and
            `logged`.
        qpcs: Folders that must not be there yet.
        commands: `compile`, the folder of a QPC, and the compiler's arguments; or a command that `compiler` defines.
        after: Handling of the output.
    """
    lines = [shlex.join(words) for words in (*(("vacant", qpc) for qpc in qpcs), *commands)]
    return _SCRIPT.substitute(
        compiler=compiler.strip(),
        after=after,
        script=SCRIPT,
        program=PROGRAM,
        log=LOG,
        note=NOTE,
        sums_file=SUMS,
        commands="\n".join(lines),
    )


def run(folder: Path) -> None:
    """Run the script of a folder; when this process is interrupted, the compiler ends as well.

    Args:
        folder: Holds the script and all that it reads.

    Raises:
        CompileError: The compiler refused, was killed, or had no room.
    """
    with subprocess.Popen(
        ["bash", SCRIPT],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            _, stderr = process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()  # Popen itself does not after Ctrl-C
            raise
    if process.returncode:
        raise CompileError(_failure(folder, process.returncode, stderr.decode(errors="replace")))


def _failure(folder: Path, code: int, stderr: str) -> str:
    tail = "".join(f"\n  {line}" for line in stderr.splitlines()[-_TAIL:])
    how, advice = engines.end(code, stderr, folder)
    return (
        f"The compiler {how}; expected 0 and a QPC. {advice} `bash {SCRIPT}` in its folder repeats "
        f"it. The log ends:{tail}"
    )
