# SPDX-License-Identifier: Apache-2.0
"""The commands of QNN's two tools: their arguments, and how a script finds and calls them.

In: what was planned. Out: arguments in QEfficient's order, with paths relative to the folder that they are used in.
"""

from dataclasses import dataclass
from string import Template

from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.package.prepared import PROGRAM
from qeff_zoo.targets.qaic import command as qaic

from . import qnn_config, sdk

#: The library that compiles, in the SDK.
_LIBRARY = f"lib/{sdk.HOST}/libQnnAic.so"
_NAMES = ("--binary_file", "qnngraph.serialized", "--backend_binary", PROGRAM)


@dataclass(frozen=True)
class Files(qaic.Files):
    """Where everything of one program is, relative to the folder that it is compiled in."""

    @property
    def custom_io(self) -> str:
        return self.called("custom_io_config.yaml")

    @property
    def partitions(self) -> str:
        return self.called("tensor_slicing.json")

    @property
    def dlc(self) -> str:
        return self.called("model.dlc")

    @property
    def compiler(self) -> str:
        return self.called("qnn_compiler_config.json")

    @property
    def backend(self) -> str:
        return self.called("qnn_compile_backend.json")

    @property
    def data_formats(self) -> str:
        return self.called("qnn_data_format_config.json")


def converter(program: ProgramPlan, name: str) -> list[str]:
    """Return the arguments of qairt-converter.

    Args:
        program: Planned program.
        name: Name of the program.
    """
    files = Files(name)
    return [
        *("--input_network", files.model),
        *("--output_path", files.dlc),
        *("--config", files.custom_io),
        *("--float_bias_bitwidth", "32"),
        *("--float_bitwidth", "16"),
        "--preserve_io_datatype",
        "--onnx_skip_simplification",
        *("--target_backend", "AIC"),
        *qnn_config.read(program.flags).converter,
    ]


def generator(program: ProgramPlan, name: str) -> list[str]:
    """Return the arguments of qnn-context-binary-generator, except for its output and its library.

    Args:
        program: Planned program.
        name: Name of the program.
    """
    files, generator = Files(name), qnn_config.read(program.flags).generator
    levels = [word for word in generator if word.partition("=")[0] == "--log_level"]
    blocked = program.flags.get("mxint8_kv_cache")
    return [
        *("--dlc_path", files.dlc),
        *("--config_file", files.compiler),
        *(("--data_format_config", files.data_formats) if blocked else ()),
        *(() if levels else ("--log_level", "error")),
        *generator,
    ]


def commands(program: ProgramPlan, name: str) -> list[list[str]]:
    """Return what compiles a program, in the folder that it was prepared in; its library is in the SDK."""
    outputs = ("--output_dir", Files(name).qpc, "--backend", _LIBRARY)
    return [
        [sdk.CONVERTER, *converter(program, name)],
        [sdk.GENERATOR, *_NAMES, *outputs, *generator(program, name)],
    ]


def steps(program: ProgramPlan, name: str) -> list[list[str]]:
    """Return the lines of the script that compile a program, see `qeff_zoo.targets.qaic.driver.script`."""
    files = Files(name)
    return [
        ["convert", files.dlc, *converter(program, name)],
        ["compile", files.qpc, *generator(program, name)],
        ["rm", files.dlc],
    ]


_COMPILER = Template(r"""
sdk=$${$variable:-}
[ -n "$$sdk" ] || fail "$variable is not set; expected where the QNN SDK is. Set it."
if [[ $$sdk != /* ]]; then sdk=$$PWD/$$sdk; fi
for tool in $converter $generator; do
  [ -x "$$sdk/bin/$host/$$tool" ] || fail "No $$tool in '$$sdk/bin/$host'; expected the QNN SDK. Correct $variable."
done
export LD_LIBRARY_PATH=$$sdk/lib/$host$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}
export PYTHONPATH=$$sdk/lib/python$${PYTHONPATH:+:$$PYTHONPATH}
name=$generator platform=
version=$$(sed -n 's/^version: *//p' "$$sdk/sdk.yaml" 2>/dev/null | head -n 1 | tr -d "\"' ") || true

convert() { # DLC, then the converter's arguments
  local dlc=$$1
  shift
  rm -f "$$dlc"
  logged "$$sdk/bin/$host/$converter" "$$@"
  [ -s "$$dlc" ] || fail "The converter wrote no '$$dlc'; expected one."
}

compile_into() {
  local folder=$$1
  shift
  mkdir "$$folder"
  logged "$$sdk/bin/$host/$generator" $names --output_dir "$$folder" --backend "$$sdk/$library" "$$@"
}
""")
#: How a script finds and calls the tools.
COMPILER = _COMPILER.substitute(
    variable=sdk.VARIABLE,
    host=sdk.HOST,
    converter=sdk.CONVERTER,
    generator=sdk.GENERATOR,
    names=" ".join(_NAMES),
    library=_LIBRARY,
)
