# SPDX-License-Identifier: Apache-2.0
"""Runs of a package on the validation cases: token inputs and their outputs; see `Task.trial` for each task's runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from qeff_zoo.contract import Task, find
from qeff_zoo.package import Package
from qeff_zoo.runtime.garbage import uncollected
from qeff_zoo.runtime.program import Array
from qeff_zoo.sessions import open_session
from qeff_zoo.sessions.opening import Opening
from qeff_zoo.validation.trial.faults import Fault
from qeff_zoo.validation.trial.phases import Progress
from qeff_zoo.validation.trial.routing import Run, read_choices

if TYPE_CHECKING:
    from qeff_zoo.multimodal.encoding.prepared import Prepared

#: Key of an output: number of the sequence, index into its positions, number of the run.
Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Inputs and outputs of a package's runs.

    Args:
        sequences: Token ids; for images the arguments of `sample_images.draw`; for audio the lengths.
        positions: Positions with an output for each sequence, ascending; with draft heads, repeated for each head.
        keys: Keys of every output, by stage.
        answers: Outputs by stage, (answers, vocab, hidden or labels).
        runs: Runs of sequences in batch rows, with the choices of routers and indexers.
        types: Token types of the sequences, if the package takes them.
        prompts: Number of the first tokens of each sequence that are a prompt, if the package excludes prompts.
        attended: Number of the first tokens of each sequence that tokens attend to, if some queries are expanded.
        media: Images or audio of each sequence, as prepared by a processor; empty for other packages.
        of_media: Declaration of the multimodal input by the recipe, and the placeholder token.
        drawn: Tokens that the package sampled greedily for every output, by stage; empty if it does not sample.
        greedy: Prompt and continuation.
        sources: Token ids of each sequence's source text; for images the arguments of `sample_images.draw`, followed by
            the tokens of the encoder prompt.
        recordings: Inputs of an audio model: (samples,) or feature frames (frames, bins); for each transcribed
            sequence, (bins, frames).
        texts: Token ids of the texts that are matched with images; as sequences, they follow the images.
        faults: Faults that the stages test for.
        settings: The session's reading of the package's settings, see `settings_read_by`.
    """

    sequences: list[list[int]]
    positions: list[list[int]]
    keys: Mapping[str, list[Key]]
    answers: Mapping[str, Array]
    runs: list[Run]
    types: list[list[int]] | None = None
    prompts: list[int] | None = None
    attended: list[int] | None = None
    media: "Sequence[Sequence[Prepared]]" = ()
    of_media: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Array] = field(default_factory=dict)
    greedy: tuple[list[int], list[int]] | None = None
    sources: Sequence[Sequence[int]] = ()
    recordings: Sequence[Array] = ()
    texts: Sequence[Sequence[int]] = ()
    faults: Sequence[Fault] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialContext:
    """Context of a trial: a package, its task, and the recorder of its runs.

    Args:
        package: The package.
        task: Task of the package.
        runs: Recorder of every run.
        step: Callback after every step.
        threads: CPU threads of a session; None for one per physical core.
        opening: Function that opens a replacement of the package's programs; None for the programs themselves.
        stages: Names of the stages to run, for a decoder; None for all of them.
        continues: Whether a decoder also continues a text.
    """

    package: Package
    task: Task
    runs: "RunRecorder"
    step: Progress
    threads: int | None
    opening: Opening | None
    stages: Collection[str] | None = None
    continues: bool = True


class TaskTrial(Protocol):
    """Runner of a task's packages on sample inputs; `Task.trial` returns its class.

    Args:
        session: Session of a package of the task.
    """

    def __init__(self, session: Any) -> None: ...

    def call_once(self) -> None:
        """Run the smallest call of the task."""

    def run(self, context: TrialContext) -> Trial:
        """Run every stage of the task's cases."""


def try_package(
    package: Package,
    threads: int | None,
    step: Progress,
    opening: Opening | None = None,
    stages: Collection[str] | None = None,
    *,
    continues: bool = True,
    routing: bool = True,
) -> Trial:
    """Run the package or its replacement; release its memory before the reference loads a model.

    Args:
        package: The package.
        threads: See `TrialContext`, as for the others.
        step: See `TrialContext`.
        opening: See `TrialContext`.
        stages: See `TrialContext`.
        continues: See `TrialContext`.
        routing: Whether the choices of routers and indexers are recorded.
    """
    runs, task = RunRecorder(), find(package.task)
    # Which of its tokens chose what.
    observe = runs.note if routing and task.reads == "text" else None
    with uncollected():  # imports, a tokenizer, a graph
        session = open_session(package, threads=threads, observe=observe, opening=opening)
    context = TrialContext(
        package=package,
        task=task,
        runs=runs,
        step=step,
        threads=threads,
        opening=opening,
        stages=stages,
        continues=continues,
    )
    trial: TaskTrial = task.trial()(session)
    return replace(trial.run(context), settings=settings_read_by(session))


def call_once(package: Package) -> None:
    """Open a package and run the smallest call, which a valid package supports.

    Raises:
        GenerationError: The KV cache does not fit into memory; the target's runtime may raise other errors.
    """
    trial: TaskTrial = find(package.task).trial()(open_session(package, smoke_test=True))
    trial.call_once()


class RunRecorder:
    """Recorder of the run in each batch row, and of the choices of routers and indexers."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._at: dict[int, int] = {}

    def begin(self, row: int, sequence: int) -> int:
        """Begin a sequence in a batch row; return the number of its run."""
        self._at[row] = len(self.runs)
        self.runs.append(Run(sequence))
        return self._at[row]

    def run(self, row: int) -> int:
        """Return the number of a batch row's current run."""
        return self._at[row]

    def end(self) -> None:
        """Ignore the following calls."""
        self._at.clear()

    def note(
        self, inputs: Mapping[str, Array], rows: Sequence[int], outputs: Mapping[str, Array]
    ) -> None:
        """Record a call's choices for the tokens of rows with a current run; an encoder's rows are numbered from 0."""
        if "input_ids" not in inputs:  # such as the decoder of a VAE
            return
        batch, width = inputs["input_ids"].shape
        positions = inputs.get("position_ids")
        real = inputs["attention_mask"] > 0 if positions is None else positions >= 0
        # A target may omit the columns that are padding in all rows; tokens come first.
        narrow = int(real.sum(1).max())
        chosen = read_choices(outputs, batch, narrow) | read_choices(outputs, batch, width)
        for index, row in enumerate(rows or range(batch)):
            if chosen and row in self._at:
                length = int(real[index].sum())
                self.runs[self._at[row]].note(
                    {name: found[index, :length] for name, found in chosen.items()}
                )


def settings_read_by(session: Any) -> dict[str, Any]:
    """Return what a session made of its package's settings.

    Args:
        session: Session of any task.
    """
    settings: dict[str, Any] = {}
    if (ends := getattr(session, "eos_token_ids", None)) is not None:
        settings["ends"] = sorted(ends)
    # A recording's labels are characters, which the texts are compared for.
    if isinstance(labels := getattr(session, "labels", None), Sequence) and labels:
        settings["labels"] = [*labels]
    return settings
