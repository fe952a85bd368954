# SPDX-License-Identifier: Apache-2.0
"""Claim: a tiny model is lowered for target `qaic` in 2 s, and a 405 B Llama for 16 devices in 60 s and 2 GB.

    python benchmarks/lowering.py [RECIPE ...] > benchmarks/results/lowering.json

Every recipe of a decoder without arguments, each by its first tiny model. CPU seconds of one process each, which is
forked from one that has imported torch and transformers; no weights are read.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qeff_zoo import registry

SIZES = Path(__file__).parent.parent / "tests" / "full_size_configs.json"
LARGE = "meta-llama/Llama-3.1-405B"
DEVICES, STAGES, CORES = 16, 4, 16
_IMPORTED = ["torch", "transformers", "qeff_zoo.export.exporter", "qeff_zoo.targets.qaic.lowering"]


def measure(config: dict[str, Any], ctx_len: int) -> dict[str, Any]:
    """Trace and lower one model, and write the configs of a pipeline over the devices if it has layers for it."""
    from qeff_zoo.export import exporter
    from qeff_zoo.graph.numerics import FLOAT16
    from qeff_zoo.recipe import Shape
    from qeff_zoo.targets.qaic import configs, lowering
    from qeff_zoo.weights.storage import Storage

    recipe, marks = registry.find_recipe(config["model_type"]), [time.process_time()]
    model = exporter.export_graph(config, recipe)
    marks.append(time.process_time())
    named = {name: name for name in model.graph.initializers}
    graph: Any = SimpleNamespace(model=model, bindings=named, encoded={})
    shape = Shape(ctx_len=ctx_len, prefill_seq_len=32)
    program: Any = SimpleNamespace(shape=shape, storage=lambda encoded: Storage(FLOAT16, encoded))
    lowered = lowering.lower(graph, program).model
    for number, node in enumerate(lowered.graph):
        node.name = node.name or f"node_{number}"
    if config.get("num_hidden_layers", 0) >= DEVICES:
        configs.pipelined(configs.nodes_of(lowered), STAGES, DEVICES, CORES)
    marks.append(time.process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    traced, made = (later - earlier for earlier, later in pairwise(marks))
    return {"trace_cpu_s": round(traced, 2), "lower_cpu_s": round(made, 2), "peak_bytes": peak}


def main() -> None:
    """Measure each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*")
    arguments = parser.parse_args()
    (large,) = [load for load in json.loads(SIZES.read_bytes()) if load["model_id"] == LARGE]
    wanted = {LARGE: ({"model_type": "llama", **large["config"]}, 4096)}
    for name in arguments.recipes or registry.list_model_types():
        recipe = registry.find_recipe(name)
        if recipe.task == "text-generation":
            wanted[name] = {"model_type": recipe.model_type, **recipe.tiny[0].config}, 64
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    found = {}
    with context.Pool(1, maxtasksperchild=1) as pool:
        for name, one in wanted.items():
            found[name] = pool.apply(measure, one)
            print(name, found[name], file=sys.stderr)
    slowest = max(list(found)[1:], key=lambda name: found[name]["lower_cpu_s"])
    print(json.dumps({"slowest_tiny": {slowest: found[slowest]}, **found}, indent=1))


if __name__ == "__main__":
    main()
