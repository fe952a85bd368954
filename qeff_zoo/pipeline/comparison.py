# SPDX-License-Identifier: Apache-2.0
"""Perplexity of packages beside that of Hugging Face's model and of the portable graph, on one text."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qeff_zoo import pipeline
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.package import Package
from qeff_zoo.pipeline import graphs
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.plan.request import Request
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.sessions import open_session
from qeff_zoo.targets.ort.session import open_portable
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch
from qeff_zoo.validation.perplexity import PerplexityComparison, Scoring, score, score_reference


def compare(
    packages: Mapping[str, Package],
    scoring: Scoring,
    *,
    checkpoint: str | None = None,
    adapters: Sequence[str] = (),
    graph: bool = False,
    reporter: Reporter | None = None,
) -> PerplexityComparison:
    """Score a text with packages and with Hugging Face's model: the same windows, the same targets.

    Args:
        packages: Packages of one checkpoint and one context, by display name; at least one.
        scoring: Result of `prepare`.
        checkpoint: Current place of the checkpoint; None for its place at the builds on this machine.
        adapters: Current places of merged adapters, see `checks.source_of`.
        graph: Also the portable graph, in float32.
        reporter: Shows progress.

    Raises:
        CheckpointError: The checkpoint is not to be found, or is another one.
        ParityError: Hugging Face's model does not run.

    Example:
        >>> scoring = prepare(package, Path("held_out.txt").read_text())  # doctest: +SKIP
        >>> compare({"package": package}, scoring).ratio("package")  # doctest: +SKIP
        1.0000002
    """
    watch = Stopwatch(reporter or Silent())
    source, *_ = [source_of(package, checkpoint, adapters) for package in packages.values()]
    first = next(iter(packages.values()))
    specializations = first.programs[0].specializations
    factors = first.manifest["spec"].get("task", {}).get("rope_factors")
    ctx_len = DecoderSizes.read(specializations).ctx_len
    scores = {}
    with watch.stage("hugging-face", unit="call") as step:
        scores["hugging-face"] = score_reference(scoring, source, factors, step)
    if graph:
        with tempfile.TemporaryDirectory() as name, watch.stage("graph", unit="call") as step:
            folder = Path(name, "graph")
            choices = Request(
                task=TEXT_GENERATION,
                ctx_len=ctx_len,
                rope_factors=factors,
                num_speculative_tokens=(1,),  # for logits after each token
            )
            pipeline.export(
                str(source.folder / source.gguf),
                folder,
                request=choices,
                config_from=str(source.companions["config.json"]) if source.gguf else None,
            )
            program = open_portable(folder / graphs.GRAPH, specializations)
            scores["graph"] = score(scoring, Decoder(program), step)
    for name, package in packages.items():
        with watch.stage(name, unit="call") as step:
            opened: Any = open_session(package)
            scores[name] = score(scoring, opened.decoder, step)
            del opened  # its memory is free again before the next is opened
    return PerplexityComparison(name=source.name, scoring=scoring, scores=scores)
