# SPDX-License-Identifier: Apache-2.0
"""A checkpoint whose graph runs in any numerics, against the answers of Hugging Face's model in float32.

checkpoint ─ portable graph, weights ─┬─ in float32, and in a device's numerics ─┬─ same tokens ─> Figures
                                      └─ lowered for ort in int8, int4, w8a8 ────┘
"""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

import numpy as np
import onnx_ir as ir

from qeff_zoo import targets
from qeff_zoo.checkpoint.expressions import TensorSource
from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.contract import FEATURE_EXTRACTION, TEXT_GENERATION
from qeff_zoo.disk.text_files import lines_of
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.export import companions
from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import (
    MIXED_BITS,
    DeviceNumerics,
    Format,
    Numerics,
    RoundedMatrix,
    format_of,
)
from qeff_zoo.graph.states import states_of
from qeff_zoo.pipeline import graphs, rounding
from qeff_zoo.plan import resolve as plans
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import Request
from qeff_zoo.prediction.measures import Figures, Tally
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.store import Store
from qeff_zoo.targets.emulation import device
from qeff_zoo.targets.emulation.rounded_weights import RoundedWeights
from qeff_zoo.targets.ort.session import OrtProgram, open_graph
from qeff_zoo.terminal.progress import Stopwatch
from qeff_zoo.validation.perplexity import Scoring
from qeff_zoo.validation.reference.answers import Reference
from qeff_zoo.validation.trial.sample_texts import draw
from qeff_zoo.weights import mixture, placement, writing
from qeff_zoo.weights.bound_graph import BoundGraph
from qeff_zoo.weights.importance import Measured, of_slots
from qeff_zoo.weights.layout import plan_file

from . import positions

FLOAT32 = "float32"
#: Numerics of devices, by what the table calls them.
DEVICES: Mapping[str, DeviceNumerics] = MappingProxyType(
    {
        "fp16": DeviceNumerics(),
        "fp16 of HTP": DeviceNumerics(functions="htp"),
        "fp16 + mxfp6": DeviceNumerics(weights="mxfp6"),
        "fp16 + mxint8 KV": DeviceNumerics(states="mxint8"),
        "fp16 + mxfp6 + mxint8 KV": DeviceNumerics(weights="mxfp6", states="mxint8"),
    }
)
_REFERENCE = "qeff_zoo.validation.reference.prediction"
_LINES = (8, 24, 48, 96)  # tokens of the texts that an encoder reads unless there are others


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Input of every variant.

    Args:
        sequences: Token ids.
        positions: Compared positions of each sequence; empty for encoders.
        targets: Next tokens at these positions of each sequence; empty for encoders.
    """

    sequences: Sequence[Sequence[int]]
    positions: Sequence[Sequence[int]] = ()
    targets: Sequence[Sequence[int]] = ()


class Subject:
    """A checkpoint with its graph, its texts, and Hugging Face's answers to them.

    Use `opened`. Rounded weights are written to one file, each once, however many graphs read them.
    """

    def __init__(self, checkpoint: Checkpoint, plan: Plan, texts: Texts, folder: Path) -> None:
        self.checkpoint, self.plan, self.texts, self._folder = checkpoint, plan, texts, folder
        (self._program,) = plan.programs
        self.is_decoder = self._program.task == TEXT_GENERATION
        longest = max(map(len, texts.sequences))
        #: Tokens of a call: what is retained is rounded at its end.
        self.width = self._program.shape.prefill_seq_len if self.is_decoder else longest
        symbols = {"batch_size": 1, "seq_len": self.width, "ctx_len": longest}
        self._specializations = [{"name": "Prediction", "symbols": symbols}]
        self._weights: list[str] = []
        self._rounded = RoundedWeights(folder / "rounded.data")
        #: Those of `DEVICES` that mean something to it: not every model has keys and values.
        self.numerics = DEVICES
        self._expected: list[Array] | None = None

    @property
    def name(self) -> str:
        """For a person."""
        return self.checkpoint.name

    def prepare(self, store: Store) -> None:
        """Write the graph in float32, and its weights."""
        graph = self._graph(store)
        slots = placement.as_they_are(graph.model, graph.bindings)
        layout = plan_file(slots, self.checkpoint.tensors)
        self._weights = list(graph.bindings)
        # In float32, and rounded to float16 and to mxfp6, as float32 too; and integers, a quarter at most.
        store.require_space(self._folder, 13 * layout.nbytes // 4, "weights in several numerics")
        writing.write(layout, self.checkpoint, self._folder / external_data.WEIGHTS)
        placement.place(graph.model, layout)
        states = states_of(graph.model.graph.inputs)
        if all(state.kind == "recurrent" for state in states):
            self.numerics = {name: one for name, one in DEVICES.items() if not one.states}
        ir.save(graph.model, self._folder / graphs.GRAPH)

    def check(self, keep: Sequence[str]) -> None:
        """Make sure that each pattern of weights to keep names some.

        Args:
            keep: See `DeviceNumerics`.

        Raises:
            PlanError: One names none.
        """
        idle = [one for one in keep if not fnmatch.filter(self._weights, one)]
        if idle:
            raise PlanError(
                [
                    f"--keep-precision {one!r} names no weight of {self.name!r}; expected names such as "
                    f"{self._weights[0]!r}, with * and ? for what may differ. Correct it, or leave it out."
                    for one in idle
                ]
            )

    def run_reference(self, step: Callable[[int], None]) -> None:
        """Get the answers of Hugging Face's model in float32, in a process of its own."""
        self._expected = self.reference(step)

    def reference(
        self, step: Callable[[int], None], numerics: DeviceNumerics | None = None
    ) -> list[Array]:
        """Return the answers of Hugging Face's model, for each sequence.

        Args:
            step: Callback for every call.
            numerics: Numerics of a device; None for float32.
        """
        settings = self.plan.spec.get("task", {})
        rounded = Numerics() if numerics is None else Numerics(matrices=self.matrices(numerics))
        request = {
            **self.checkpoint.located,
            "task": self._program.task,
            "sequences": self.texts.sequences,
            "positions": self.texts.positions,
            "settings": {
                name: settings[name]
                for name in ("pooling", "normalize", "rope_factors")
                if name in settings
            },
            "device": None if numerics is None else asdict(numerics),
            "numerics": rounded.as_dict(),
        }
        with Reference(None, _REFERENCE) as reference:
            answers = reference.run(request, step).arrays
        return [answers[f"reference.{number}"] for number in range(len(self.texts.sequences))]

    def matrices(self, numerics: DeviceNumerics) -> tuple[RoundedMatrix, ...]:
        """Return the weights that a device's numerics have in mxfp6."""
        return device.matrices(self._model(numerics))

    def in_float32(self, step: Callable[[int], None]) -> Figures:
        """Compare the portable graph as it is."""
        return self._figures(FLOAT32, self._folder / graphs.GRAPH, step)

    def on_device(
        self, name: str, numerics: DeviceNumerics, step: Callable[[int], None]
    ) -> Figures:
        """Compare the graph in a device's numerics."""
        model = self._model(numerics)
        self._rounded.place(model)
        path = self._folder / "device.onnx"
        ir.save(model, path)
        return self._figures(name, path, step)

    def in_integers(self, weights: str, store: Store, step: Callable[[int], None]) -> Figures:
        """Compare the graph as target `ort` runs it with weights in integers."""
        target, graph = targets.find("ort"), self._graph(store)
        rounded = replace(self._program, weights=format_of(weights), stored=False)
        formats: Mapping[str, Format] = {}
        measured = Measured()
        source: TensorSource = self.checkpoint
        if rounded.weights.fitted:
            tokenizer = companions.tokenizer_of(self.checkpoint)
            matrices = rounding.matrices_of(target, [rounded], [graph], self.checkpoint)
            measured = rounding.measure(self.checkpoint, rounded.task, tokenizer, costs=True)
            bits = matrices.nearest(MIXED_BITS)
            formats = mixture.choose(matrices, bits, self.checkpoint, measured).formats
        elif rounded.weights.per_channel:
            tokenizer = companions.tokenizer_of(self.checkpoint)
            evened = rounding.even_out(self.checkpoint, [rounded], [graph], tokenizer)
            formats, source = evened.formats, evened.read(self.checkpoint)
        (program,) = rounding.with_formats([rounded], formats)
        lowered = target.lower(graph, program)
        layout = plan_file(lowered.slots, source.tensors)
        folder = self._folder / weights
        folder.mkdir()
        importance, _ = of_slots(measured.importance, rounding.fitted(layout))
        weights_file = folder / external_data.WEIGHTS
        writing.write(layout, source, weights_file, importance=importance)
        path = target.compile(lowered, layout, folder, "graph", program)
        figures = self._figures(weights, path, step, prepack=True)
        weights_file.unlink()
        return figures

    def _graph(self, store: Store) -> BoundGraph:
        graph = graphs.obtain(self.plan, self._program, self.checkpoint, store)
        if self.is_decoder:
            positions.return_all(graph.model)
        return graph

    def _model(self, numerics: DeviceNumerics) -> ir.Model:
        model = ir.load(self._folder / graphs.GRAPH)
        device.apply(model, numerics, tables=True)
        return model

    def _figures(
        self, name: str, path: Path, step: Callable[[int], None], *, prepack: bool = False
    ) -> Figures:
        states = states_of(ir.load(path).graph.inputs)
        program = OrtProgram(open_graph(path, prepack=prepack), states, self._specializations)
        return self.compare(name, program, step)

    def compare(self, name: str, program: Program, step: Callable[[int], None]) -> Figures:
        """Compare what a program answers with what Hugging Face's model does.

        Args:
            name: Name of its numerics.
            program: Opened. Of a decoder it takes calls of `width` tokens, and answers every one.
            step: Callback for every call.
        """
        assert self._expected is not None
        tally = Tally(name)
        for number, tokens in enumerate(self.texts.sequences):
            expected, done = self._expected[number], 0
            targets_here = self.texts.targets[number] if self.is_decoder else None
            for answers in self._answers(program, number, tokens):
                end = done + len(answers)
                given = None if targets_here is None else targets_here[done:end]
                if len(answers):
                    tally.add(expected[done:end], answers, given)
                done = end
                step(1)
        return tally.figures()

    def _answers(self, program: Program, number: int, tokens: Sequence[int]) -> Iterator[Array]:
        """Run a sequence call by call; yields the answers that matter of each."""
        if not self.is_decoder:
            yield _embed(program, tokens)
            return
        first = self.texts.positions[number][0]
        for start in range(0, len(tokens), self.width):
            logits = _decode(program, tokens[start : start + self.width], start)
            yield logits[max(0, first - start) :]


def _decode(program: Program, tokens: Sequence[int], start: int) -> Array:
    """Run tokens after those that were run before; return logits of each."""
    inputs = {
        "input_ids": np.array([tokens], np.int64),
        "position_ids": np.arange(start, start + len(tokens))[None],
    }
    logits: Array = program.run(inputs, [0])["logits"][0]
    return logits


def _embed(program: Program, tokens: Sequence[int]) -> Array:
    """Run a whole text; return its embedding, (1, hidden)."""
    ids = np.array([tokens], np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if "token_type_ids" in program.inputs:
        inputs["token_type_ids"] = np.zeros_like(ids)
    (embedding,) = program.run(inputs).values()
    return embedding


@contextmanager
def opened(
    model: str,
    *,
    text: str | None = None,
    tokens: int = 512,
    keep: Sequence[str] = (),
    request: Request = Request(),
    watch: Stopwatch,
    **place: Unpack[Place],
) -> Iterator[tuple[Subject, Store]]:
    """Open a checkpoint to try numerics on it; everything is removed at the end.

    Args:
        model: Hub id, folder or GGUF file.
        text: To predict, or of an encoder to read line by line; None for texts of our own.
        tokens: Maximum number of tokens of the text.
        keep: Patterns that are to name weights.
        request: Choices that change the graph, the context or the width of calls.
        watch: Reports stages.
        **place: See `open_checkpoint`.

    Raises:
        PlanError: The checkpoint is for another task than text generation and feature extraction, or a pattern names
            no weight.
        GenerationError: The text is too short.
    """
    store = Store()
    with watch.stage("plan"):
        checkpoint = open_checkpoint(model, **place)
        plan = plans.check(checkpoint, request)
        task = plan.programs[0].task
        if len(plan.programs) != 1 or task not in (TEXT_GENERATION, FEATURE_EXTRACTION):
            raise PlanError(
                [
                    f"{checkpoint.name!r} is for {task}, of which no numerics are predicted. Expected "
                    f"{TEXT_GENERATION} or {FEATURE_EXTRACTION}. Choose one with --task where the recipe serves it, or "
                    "`build --target qaic --prepare-only`, which compares a package in a card's numerics."
                ]
            )
        checkpoint.fetch()
        texts = _texts(checkpoint, plan, text, tokens)
    with store.stage("prediction") as folder:
        subject = Subject(checkpoint, plan, texts, folder)
        with watch.stage("graph and weights"):
            subject.prepare(store)
            subject.check(keep)
        with watch.stage("hugging-face", unit="call") as step:
            subject.run_reference(step)
        yield subject, store


def _texts(checkpoint: Checkpoint, plan: Plan, text: str | None, tokens: int) -> Texts:
    (program,) = plan.programs
    tokenizer = companions.tokenizer_of(checkpoint)
    vocab_size = int(checkpoint.config.get("vocab_size", 0))
    if text is not None and tokenizer is None:
        raise GenerationError(
            f"{checkpoint.name!r} has no tokenizer.json and cannot read a text. Expected one beside its weights. Leave "
            "out --text, and random tokens are taken."
        )
    if program.task == FEATURE_EXTRACTION:
        longest = program.shape.seq_lens[-1]
        if text is None or tokenizer is None:
            lengths = [min(length, longest) for length in _LINES]
            return Texts(sequences=draw(lengths, tokenizer, vocab_size, whole=True))
        lines = lines_of(text)
        found = tokenizer.encode_batch(lines, min(longest, tokens)) if lines else []
        if not found:
            raise _too_short(text, 0, "one line")
        return Texts(sequences=found)
    if text is None or tokenizer is None:
        (every,) = draw([tokens], tokenizer, vocab_size)
    else:
        every = tokenizer.encode(text)[:tokens]
    if len(every) < 2:
        raise _too_short(text or "", len(every), "two tokens")
    window = min(program.shape.ctx_len, len(every))
    scoring = Scoring(tokens=every, window=window, stride=max(1, window // 2))
    return Texts(
        sequences=[every[one.start : one.stop - 1] for one in scoring.windows],
        positions=[
            list(range(one.first - one.start - 1, one.stop - one.start - 1))
            for one in scoring.windows
        ],
        targets=[every[one.first : one.stop] for one in scoring.windows],
    )


def _too_short(text: str, tokens: int, least: str) -> GenerationError:
    return GenerationError(
        f"A text of {len(text)} characters and {tokens} tokens is too short; expected at least {least}. Give more with "
        "--text, or raise --tokens."
    )
