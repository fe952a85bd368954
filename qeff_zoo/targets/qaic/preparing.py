# SPDX-License-Identifier: Apache-2.0
"""A folder that qaic-compile can be run in: graphs beside their data, configs, and the script that compiles them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.prepared import SCRIPT
from qeff_zoo.programs import ProgramPlan
from qeff_zoo.states import State, states_of
from qeff_zoo.targets import Lowered
from qeff_zoo.targets.qaic import configs
from qeff_zoo.targets.qaic.command import PROGRAM, Files, arguments, script
from qeff_zoo.weights.layout import FileLayout


@dataclass(frozen=True, kw_only=True)
class QaicLowered(Lowered):
    """See `qeff_zoo.targets.Lowered`.

    Args:
        program: That it was lowered for.
    """

    program: ProgramPlan


def prepare(programs: Mapping[str, Lowered], layout: FileLayout, folder: Path) -> list[Path]:
    """Write all that the compiler reads, but for the data file.

    Args:
        programs: By their names.
        layout: Of the data file.
        folder: That the data file is in.

    Returns:
        Where the script puts each program, relative to the folder.

    Raises:
        CompileError: A choice cannot be kept with this graph.
    """
    commands = []
    for name, lowered in programs.items():
        assert isinstance(lowered, QaicLowered)
        files = Files(name)
        configs.name_nodes(lowered.model)
        for path, text in _configs(lowered, files):
            (folder / path).write_text(text, encoding="utf-8")
        _write_model(lowered.model, layout, folder / files.model)
        commands.append((files.qpc, arguments(lowered.program, name)))
    (folder / SCRIPT).write_text(script(commands), encoding="utf-8")
    (folder / SCRIPT).chmod(0o755)
    return [Path(qpc, PROGRAM) for qpc, _ in commands]


def _configs(lowered: QaicLowered, files: Files) -> Iterator[tuple[str, str]]:
    """Yield path and content of each config."""
    options, model = lowered.program.flags, lowered.model
    yield files.specializations, configs.specializations(lowered.program.specializations)
    if states := _float_states(model):
        yield files.custom_io, configs.custom_io(states, configs.state_types(options))
    devices, cores = options["num_devices"], options["num_cores"]
    stages = options.get("mdp_num_partitions", 1)
    if stages > 1:
        nodes = configs.nodes_of(model)
        yield files.partitions, configs.pipelined(nodes, stages, devices, cores)
    elif devices > 1:
        yield files.partitions, configs.sliced(devices, cores)
    if patterns := options.get("node_precision_info"):
        outputs = configs.matching_outputs(model, patterns)
        yield files.node_precision, configs.node_precision(outputs)


def _float_states(model: Any) -> list[State]:
    inputs = model.graph.inputs
    return states_of(value for value in inputs if value.dtype.is_floating_point())


def _write_model(model: Any, layout: FileLayout, path: Path) -> None:
    import onnx_ir as ir

    from qeff_zoo.weights import external_data

    external_data.place(model, layout)
    ir.save(model, path)
