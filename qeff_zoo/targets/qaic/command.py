# SPDX-License-Identifier: Apache-2.0
"""The command of qaic-compile: its arguments, and how a script finds and calls it.

In: what was planned. Out: arguments in QEfficient's order, with paths relative to the folder that they are used in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

from qeff_zoo import contract
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.targets.qaic.options import flags_of
from qeff_zoo.targets.qaic.sdk import COMPILER_VARIABLE, SDK

#: First SDK whose compiler reads named specializations; an older one reads flat entries of sizes.
NAMED_SINCE = "1.22"
#: What a pipeline calls the only program of a package.
_ALONE = "graph"


@dataclass(frozen=True)
class Files:
    """Where everything of one program is, relative to the folder that it is compiled in.

    Args:
        name: Name of the program.
    """

    name: str

    def called(self, name: str) -> str:
        """Return the name of a file of this program."""
        return name if self.name == _ALONE else f"{self.name}.{name}"

    @property
    def model(self) -> str:
        return self.called("model.onnx")

    @property
    def specializations(self) -> str:
        return self.called("specializations.json")

    @property
    def custom_io(self) -> str:
        return self.called("custom_io.yaml")

    @property
    def partitions(self) -> str:
        return self.called("mdp_partitions.json")

    @property
    def node_precision(self) -> str:
        return self.called("node_precision_info.yaml")

    @property
    def qpc(self) -> str:
        """The folder of its QPC."""
        return "qpc" if self.name == _ALONE else f"qpc/{self.name}"


def arguments(program: ProgramPlan, name: str) -> list[str]:
    """Return the arguments of qaic-compile, except the folder of its QPC.

    Args:
        program: Planned program.
        name: Name of the program.
    """
    options = program.flags
    task = contract.find(program.task)
    shared = "max_loras" in program.variant or task.before
    if program.shape.apart or (shared and program.decodes):  # else states could not be transferred
        options = {**options, "split_retained_state_io": True}
    crosses = task.role == "decoder" and "encoder" in [part.role for part in task.before]
    return compiler_arguments(Files(name), options, decodes=program.decodes, crosses=crosses)


def compiler_arguments(
    files: Files,
    options: Mapping[str, Any],
    *,
    decodes: bool,
    crosses: bool = False,
    model: str | None = None,
) -> list[str]:
    """Return the arguments of qaic-compile, except the folder of its QPC.

    Args:
        files: Files that the compiler reads.
        options: Target options that are on, by name.
        decodes: Whether states are retained.
        crosses: Whether one program returns what another retains.
        model: Path of the graph, where that is not one of the files.
    """
    stages, devices = options.get("mdp_num_partitions", 1), options["num_devices"]
    partitions = [f"-mdp-load-partition-config={files.partitions}"]
    return [
        "-aic-hw",
        f"-aic-hw-version={options['aic_hw_version']}",
        f"-m={model or files.model}",
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
        *([f"-custom-IO-list-file={files.custom_io}"] if decodes or crosses else ()),
    ]


_COMPILER = Template(r"""
sdk=$sdk
tag() { sed -n "s:.*<$$2> *\([0-9A-Za-z._-]*\) *</$$2>.*:\1:p" "$$sdk/versions/$$1.xml" 2>/dev/null | head -n 1; }
release() { echo "$$(tag "$$1" base_version).$$(tag "$$1" build_id)" | sed 's/^\.//; s/\.$$//'; }

compiler=$${$variable:-$$sdk/exec/qaic-compile}
if [ -z "$${$variable:-}" ] && [ ! -x "$$compiler" ]; then compiler=$$sdk/exec/qaic-exec; fi
if [[ $$compiler == */* && $$compiler != /* ]]; then compiler=$$PWD/$$compiler; fi
command -v "$$compiler" >/dev/null || fail "No compiler at '$$compiler'; expected qaic-compile of the Apps SDK.\
 Install that, or set $variable to where it is."
name=$${compiler##*/} version=$$(release apps) platform=$$(release platform)

flat_specializations() { # of the SDK, or without its version of the compiler's name
  local known=$$version
  if [ -z "$$known" ] && [ "$$name" = qaic-exec ]; then known=0; fi
  [ -n "$$known" ] && [ "$$(printf '%s\n' $named_since "$$known" | sort -V | head -n 1)" != $named_since ]
}

compile_into() {
  local folder=$$1 argument file
  shift
  if flat_specializations; then
    for argument; do
      if [[ $$argument != *=*specializations.json ]]; then continue; fi
      file=$${argument#*=}
      sed -e '/^   "name": /d' -e '/^   "symbols": {$$/d' -e '/^   }$$/d' "$$file" > "$${file%.json}.flat.json"
    done
    set -- "$${@/%specializations.json/specializations.flat.json}"
  fi
  if [ "$$name" = qaic-exec ]; then
    set -- "$${@/#-aic-hw-version=ai100/-aic-hw-version=2.0}" -compile-only
  fi
  logged "$$compiler" "$$@" "-aic-binary-dir=$$folder"
}
""")
#: How a script finds and calls qaic-compile, see `qeff_zoo.targets.qaic.driver.script`.
COMPILER = _COMPILER.substitute(sdk=SDK, variable=COMPILER_VARIABLE, named_since=NAMED_SINCE)
