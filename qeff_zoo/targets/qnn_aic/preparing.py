# SPDX-License-Identifier: Apache-2.0
"""A folder that QNN's tools can be run in: graphs beside their data, configs, and the script that compiles them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.qaic.configs import name_nodes, precision_of, specializations, state_types
from qeff_zoo.targets.qaic.driver import script
from qeff_zoo.targets.qaic.preparing import float_states, write_model, write_script
from qeff_zoo.targets.qnn_aic.command import COMPILER, Files, steps
from qeff_zoo.weights.layout import FileLayout

from . import configs, qnn_config


def prepare(
    programs: Mapping[str, tuple[ProgramPlan, Lowered]], layout: FileLayout, folder: Path
) -> list[Path]:
    """Write all that the tools read, but for the data file, see `qeff_zoo.targets.qaic.preparing.prepare`."""
    qpcs, commands = [], []
    for name, (program, lowered) in programs.items():
        files = Files(name)
        name_nodes(lowered.model)
        for path, text in _configs(program, lowered.model, files):
            (folder / path).write_text(text, encoding="utf-8")
        write_model(lowered.model, layout, folder / files.model)
        qpcs.append(files.qpc)
        commands += steps(program, name)
    write_script(script(COMPILER, qpcs, commands), folder)
    return [Path(qpc) for qpc in qpcs]


def _configs(program: ProgramPlan, model: Any, files: Files) -> Iterator[tuple[str, str]]:
    """Yield path and content of each config."""
    options, sizes = program.flags, program.specializations
    yield files.specializations, specializations(sizes)
    types = state_types(options)
    kept = {state: precision_of(state, types) for state in float_states(model)}
    yield (
        files.custom_io,
        configs.custom_io(
            [(value.name, _dtype(value), [*_axes(value)]) for value in model.graph.inputs],
            [(value.name, _dtype(value)) for value in model.graph.outputs],
            {name: kind for state, kind in kept.items() for name in (state.name, state.output)},
            sizes,
        ),
    )
    graphs = configs.graph_names(sizes)
    if options.get("mxint8_kv_cache"):
        blocked = [state for state, kind in kept.items() if kind == "mxint8"]
        yield files.data_formats, configs.data_formats(blocked, graphs)
    devices = options["num_devices"]
    if devices > 1:
        yield files.partitions, configs.slicing_config(devices)
    yield (
        files.backend,
        configs.backend_config(
            options,
            qnn_config.read(options).backend,
            graphs,
            files.partitions if devices > 1 else None,
            retains=bool(kept),
        ),
    )
    yield files.compiler, configs.compiler_config(files.backend)


def _axes(value: Any) -> Iterator[int | str]:
    return (axis if isinstance(axis, int) else str(axis) for axis in value.shape)


def _dtype(value: Any) -> str:
    return str(value.dtype.numpy())
