# SPDX-License-Identifier: Apache-2.0
"""A folder that qaic-compile can be run in: graphs beside their data, configs, and the script that compiles them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.states import State, states_of
from qeff_zoo.package.prepared import SCRIPT
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.qaic.command import COMPILER, Files, arguments
from qeff_zoo.targets.qaic.driver import script
from qeff_zoo.weights.layout import FileLayout

from . import configs


def prepare(
    programs: Mapping[str, tuple[ProgramPlan, Lowered]], layout: FileLayout, folder: Path
) -> list[Path]:
    """Write all that the compiler reads, but for the data file.

    Args:
        programs: Planned and lowered programs, by name.
        layout: Layout of the data file.
        folder: Folder of the data file.

    Returns:
        Where the script puts each program, relative to the folder.

    Raises:
        CompileError: A choice cannot be kept with this graph.
    """
    qpcs, commands = [], []
    models = [lowered.model for _, lowered in programs.values()]
    for model in models:
        configs.name_nodes(model)
    for program, _ in programs.values():
        configs.check_patterns(models, program.flags.get("node_precision_info", ()))
    for name, (program, lowered) in programs.items():
        files = Files(name)
        for path, text in _configs(program, lowered.model, files):
            (folder / path).write_text(text, encoding="utf-8")
        write_model(lowered.model, layout, folder / files.model)
        qpcs.append(files.qpc)
        commands.append(["compile", files.qpc, *arguments(program, name)])
    write_script(script(COMPILER, qpcs, commands), folder)
    return [Path(qpc) for qpc in qpcs]


def write_script(text: str, folder: Path) -> None:
    """Write the script of a folder."""
    path = folder / SCRIPT
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _configs(program: ProgramPlan, model: Any, files: Files) -> Iterator[tuple[str, str]]:
    """Yield path and content of each config."""
    options = program.flags
    yield files.specializations, configs.specializations(program.specialized(model.graph))
    types = configs.state_types(options)
    read = configs.io_list(crossed_values(model), types)
    if text := configs.custom_io(float_states(model), types) + read:
        yield files.custom_io, text
    yield from chosen_configs(options, model, files)


def chosen_configs(
    options: Mapping[str, Any], model: Any, files: Files
) -> Iterator[tuple[str, str]]:
    """Yield path and content of the requested configs: of devices, and of float32 nodes.

    Args:
        options: Options of the target, by name.
        model: An `onnx_ir.Model` whose nodes have names.
        files: Files of its program.

    Raises:
        CompileError: A choice cannot be kept with this graph.
    """
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


def float_states(model: Any) -> list[State]:
    """Return the states of floats among the inputs of a model."""
    inputs = model.graph.inputs
    return states_of(value for value in inputs if value.dtype.is_floating_point())


def crossed_values(model: Any) -> list[tuple[State, list[str]]]:
    """Return what a program returns or takes of another's states, as these, each with its name."""
    states = {name for state in float_states(model) for name in (state.name, state.output)}
    return [
        (State(name=value.name, kind="cross", layer=0, axes=tuple(value.shape)), [value.name])
        for value in (*model.graph.inputs, *model.graph.outputs)
        if value.name.startswith(configs.CROSSED) and value.name not in states
    ]


def write_model(model: Any, layout: FileLayout, path: Path) -> None:
    """Write a graph beside its data file."""
    import onnx_ir as ir

    from qeff_zoo.weights import placement

    placement.place(model, layout)
    ir.save(model, path)
