# SPDX-License-Identifier: Apache-2.0
"""Running a package on the cases: which tokens went in, and what it answered; see `Task.trial` for how."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from qeff_zoo.package import Package
from qeff_zoo.runtime import open_session
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sessions import Opening
from qeff_zoo.tasks import Task, find
from qeff_zoo.validation.faults import Fault
from qeff_zoo.validation.routing import Run, read_choices

if TYPE_CHECKING:
    from qeff_zoo.runtime.media_text import Prepared

#: Called after every step with 1; how many there will be is not known before.
Progress: TypeAlias = Callable[[int], None]
#: Which answer: number of the sequence, index into its positions, number of the run that gave it.
Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a package answered, and to what.

    Args:
        sequences: Token ids; of pictures what `drawings.draw` takes; of sounds how long they are.
        positions: Of each sequence, those with an answer, ascending; with heads, again for each of them.
        keys: By stage, of every answer.
        answers: By stage, (answers, vocab, hidden or labels).
        runs: Every time that a row began a sequence, with what was chosen there.
        types: Token types of the sequences, where the package takes them.
        media: Pictures or sounds in each sequence, as a processor would prepare them; nothing where it takes none.
        of_media: What the recipe says of those, and the placeholder's token.
        drawn: By stage, the token that the package drew greedily for every answer; nothing where it draws none.
        greedy: Prompt and continuation.
        sources: Token ids of the text that each sequence is written of; of pictures what `drawings.draw` takes, with
            the tokens that are read besides behind it.
        sounds: What went in, of what reads sounds: (samples,) or (frames, bins) of features; of each sequence that is
            written of one, (bins, frames).
        texts: Token ids of what pictures are matched with; as sequences, they come after the pictures.
        faults: Those that the stages are there for.
    """

    sequences: list[list[int]]
    positions: list[list[int]]
    keys: Mapping[str, list[Key]]
    answers: Mapping[str, Array]
    runs: list[Run]
    types: list[list[int]] | None = None
    media: "Sequence[Sequence[Prepared]]" = ()
    of_media: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Array] = field(default_factory=dict)
    greedy: tuple[list[int], list[int]] | None = None
    sources: Sequence[Sequence[int]] = ()
    sounds: Sequence[Array] = ()
    texts: Sequence[Sequence[int]] = ()
    faults: Sequence[Fault] = ()


@dataclass(frozen=True, kw_only=True)
class TrialContext:
    """Context of a trial.

    Args:
        package: The package.
        task: Its task.
        runs: Recorder of every run.
        step: Called after every step.
        threads: CPU threads of a session; None for one per physical core.
        opening: Opens what runs in place of the package's programs; None for those themselves.
    """

    package: Package
    task: Task
    runs: "RunRecorder"
    step: Progress
    threads: int | None
    opening: Opening | None


class TaskTrial(Protocol):
    """How the packages of a task are run on sample inputs: `Task.trial` returns such a class.

    Args:
        session: Of a package of the task.
    """

    def __init__(self, session: Any) -> None: ...

    def call_once(self) -> None:
        """Run the least call that there is."""

    def run(self, context: TrialContext) -> Trial:
        """Run every stage of the task's cases."""


def try_package(
    package: Package, threads: int | None, step: Progress, opening: Opening | None = None
) -> Trial:
    """Run the package, or what is opened in its place; its memory is free again before the reference loads a model."""
    runs, task = RunRecorder(), find(package.task)
    observe = runs.note if task.reads == "text" else None  # which of its tokens chose what
    session = open_session(package, threads=threads, observe=observe, opening=opening)
    context = TrialContext(
        package=package, task=task, runs=runs, step=step, threads=threads, opening=opening
    )
    trial: TaskTrial = task.trial()(session)
    return trial.run(context)


def call_once(package: Package) -> None:
    """Open a package and run the least call: what cannot be opened or called is not a package.

    Raises:
        GenerationError: Its states do not fit into memory; or what the target's runtime raises.
    """
    trial: TaskTrial = find(package.task).trial()(open_session(package, lean=True))
    trial.call_once()


class RunRecorder:
    """Records the run of each batch row, and what routers and indexers choose in it."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._at: dict[int, int] = {}

    def begin(self, row: int, sequence: int) -> int:
        """Begin a sequence in a row; return the number of its run."""
        self._at[row] = len(self.runs)
        self.runs.append(Run(sequence))
        return self._at[row]

    def run(self, row: int) -> int:
        """Return the number of the run that a row is at."""
        return self._at[row]

    def end(self) -> None:
        """Take no notice of what comes now."""
        self._at.clear()

    def note(
        self, inputs: Mapping[str, Array], rows: Sequence[int], outputs: Mapping[str, Array]
    ) -> None:
        """Keep what a call chose for the tokens of rows that are at a run; an encoder's rows are all from 0 on."""
        batch, width = inputs["input_ids"].shape
        positions = inputs.get("position_ids")
        real = inputs["attention_mask"] > 0 if positions is None else positions >= 0
        # A target may leave out the columns that are padding in all rows; tokens come first.
        narrow = int(real.sum(1).max())
        chosen = read_choices(outputs, batch, narrow) | read_choices(outputs, batch, width)
        for place, row in enumerate(rows or range(batch)):
            if chosen and row in self._at:
                length = int(real[place].sum())
                self.runs[self._at[row]].note(
                    {name: found[place, :length] for name, found in chosen.items()}
                )
