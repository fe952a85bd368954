# SPDX-License-Identifier: Apache-2.0
"""The command of qaic-compile: what it says, the script that runs it anywhere, and running that here.

In: what was planned. Out: arguments in QEfficient's order, with paths relative to the folder that they are used in.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template

from qeff_zoo.errors import CompileError
from qeff_zoo.prepared import NOTE, PROGRAM, SCRIPT, SUMS
from qeff_zoo.programs import ProgramPlan
from qeff_zoo.targets.qaic.options import flags_of
from qeff_zoo.targets.qaic.sdk import COMPILER_VARIABLE, SDK

LOG = "compile.log"
#: What a pipeline calls the only program of a package.
_ALONE = "graph"
_TAIL, _LITTLE_ROOM = 20, 1 << 20  # lines of a log; bytes of a disk that is full


@dataclass(frozen=True)
class Files:
    """Where everything of one program is, relative to the folder that it is compiled in.

    Args:
        name: Of the program.
    """

    name: str

    def _called(self, name: str) -> str:
        return name if self.name == _ALONE else f"{self.name}.{name}"

    @property
    def model(self) -> str:
        return self._called("model.onnx")

    @property
    def specializations(self) -> str:
        return self._called("specializations.json")

    @property
    def custom_io(self) -> str:
        return self._called("custom_io.yaml")

    @property
    def partitions(self) -> str:
        return self._called("mdp_partitions.json")

    @property
    def node_precision(self) -> str:
        return self._called("node_precision_info.yaml")

    @property
    def qpc(self) -> str:
        """The folder of its QPC."""
        return "qpc" if self.name == _ALONE else f"qpc/{self.name}"


def arguments(program: ProgramPlan, name: str) -> list[str]:
    """Return what qaic-compile is told, but for the folder of its QPC.

    Args:
        program: As it was planned.
        name: Of the program.
    """
    files, options = Files(name), program.flags
    stages, devices = options.get("mdp_num_partitions", 1), options["num_devices"]
    partitions = [f"-mdp-load-partition-config={files.partitions}"]
    decodes = bool(program.shape.ctx_len)
    return [
        "-aic-hw",
        f"-aic-hw-version={options['aic_hw_version']}",
        f"-m={files.model}",
        *(partitions if stages > 1 else ()),
        *(["-retained-state"] if decodes else ()),
        "-convert-to-fp16",
        *flags_of(options),
        *(
            [f"-node-precision-info={files.node_precision}"]
            if options.get("node_precision_info")
            else ()
        ),
        *(["-sub-functions"] if options.get("sub_functions") else ()),
        *(partitions if devices > stages == 1 else ()),
        f"-network-specialization-config={files.specializations}",
        *([f"-custom-IO-list-file={files.custom_io}"] if decodes else ()),
    ]


_SCRIPT = Template(r"""#!/usr/bin/env bash
# Compiles what lies here for Cloud AI 100. Then make the package where qeff-zoo is: qeff-zoo adopt FOLDER FOLDER/qpc
set -euo pipefail
sdk=$sdk

fail() { echo "$script: $$*" >&2; exit 1; }
tag() { sed -n "s:.*<$$2> *\([0-9A-Za-z._-]*\) *</$$2>.*:\1:p" "$$sdk/versions/$$1.xml" 2>/dev/null | head -n 1; }
release() { echo "$$(tag "$$1" base_version).$$(tag "$$1" build_id)" | sed 's/^\.//; s/\.$$//'; }

compiler=$${$variable:-$$sdk/exec/qaic-compile}
if [ -z "$${$variable:-}" ] && [ ! -x "$$compiler" ]; then compiler=$$sdk/exec/qaic-exec; fi
if [[ $$compiler == */* && $$compiler != /* ]]; then compiler=$$PWD/$$compiler; fi
cd "$$(dirname "$${BASH_SOURCE[0]}")"
command -v "$$compiler" >/dev/null || fail "No compiler at '$$compiler'; expected qaic-compile of the Apps SDK.\
 Install that, or set $variable to where it is."

compile() { # folder of the QPC, then what the compiler is told
  local qpc=$$1 partial=$$1.partial
  shift
  [ ! -e "$$qpc" ] || fail "'$$qpc' is there already; expected no such folder. Move it away, or remove it."
  rm -rf "$$partial"
  mkdir -p "$$(dirname "$$qpc")"
  if [ "$${compiler##*/}" = qaic-exec ]; then
    set -- "$${@/#-aic-hw-version=ai100/-aic-hw-version=2.0}" -compile-only
  fi
  "$$compiler" "$$@" "-aic-binary-dir=$$partial" 2>&1 | tee -a $log >&2
  [ -s "$$partial/$program" ] || fail "The compiler wrote no $program; expected one in '$$partial'. See $log."
  printf '{"schema": "qeff-compiled/1", "sums": "%s", "compiler": "%s", "version": "%s", "platform": "%s"}\n' \
    "$$sums" "$${compiler##*/}" "$$(release apps)" "$$(release platform)" > "$$partial/$note"
  mv "$$partial" "$$qpc"
}

sums=
if [ -e $sums_file ]; then
  sha256sum --check --quiet --strict $sums_file >&2 || fail "Files differ from what was prepared. Copy it again."
  sums=$$(sha256sum $sums_file | cut -d ' ' -f 1)
fi
: > $log
$commands
""")


def script(commands: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Write the script that compiles every program of a folder, wherever the SDK is.

    Args:
        commands: Of each program, the folder of its QPC and its `arguments`.
    """
    lines = [f"compile {shlex.quote(qpc)} {shlex.join(words)}" for qpc, words in commands]
    return _SCRIPT.substitute(
        sdk=SDK,
        variable=COMPILER_VARIABLE,
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
            _, said = process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise CompileError(_failure(folder, process.returncode, said.decode(errors="replace")))


def _failure(folder: Path, code: int, said: str) -> str:
    lines = said.splitlines()
    tail = "".join(f"\n  {line}" for line in lines[-_TAIL:])
    killed = code - 128 if code > 128 else -code
    how = f"ended with {code}"
    advice = "Correct what it says."
    if 0 < killed < signal.NSIG:
        how = f"was killed by {signal.Signals(killed).name}"
        advice = "If the machine ran out of memory, compile on a larger one."
    if "No space left" in said or shutil.disk_usage(folder).free < _LITTLE_ROOM:
        how += f", and {str(folder)!r} has no room left"
        advice = "Free some, or set QEFF_HOME to a larger disk."
    return (
        f"The compiler {how}; expected 0 and a QPC. {advice} `bash {SCRIPT}` in its folder repeats "
        f"it. The log ends:{tail}"
    )
