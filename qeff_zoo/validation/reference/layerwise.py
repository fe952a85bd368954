# SPDX-License-Identifier: Apache-2.0
"""The reference of a text decoder whose float32 weights do not fit into memory: all variants together, layer by layer.

Only the reference process imports this. Each layer is read once, and all passes of
`qeff_zoo.validation.reference.process` run through it, first those with the checkpoint's weights, then those with
rounded ones. Memory holds one layer, and of each pass its hidden states. Three things are not as in `reference`:

- Canaries are a fixed set (`_CANARIES`), since none can wait for what a slighter one shows.
- The greedy continuation is one pass over the package's own tokens. It is the same up to the first token that differs.
- Tied embeddings are read twice, for the first and for the last step of a pass. A model that chooses experts or keys is
  read a second time if the package chose differently, to follow its choices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo import contract
from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.runtime.memory import MEMORY_ENV, available_memory
from qeff_zoo.terminal.printing import human_size
from qeff_zoo.validation.reference.damage import HEADS, SWAPPED, HeadDamage, damaged, narrow_window
from qeff_zoo.validation.reference.formats.orders import by_parameter
from qeff_zoo.validation.reference.loading import count_parameters, decoded_weights, load_unloaded
from qeff_zoo.validation.reference.noticing import Early, Noticing
from qeff_zoo.validation.reference.numerics import Arithmetic, Preparation, in_float16
from qeff_zoo.validation.reference.routing import ChoiceRecorder, Choices
from qeff_zoo.validation.reference.runs import Answers
from qeff_zoo.validation.reference.turns import Pass, Turns
from qeff_zoo.validation.reference.unloaded import Unloaded
from qeff_zoo.validation.trial.faults import Fault

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Around: TypeAlias = Callable[[Answers], AbstractContextManager[Any]]

#: Of `HEADS`: one head times 1.01, times 1.25, and two swapped.
_CANARIES = (0, 2, 4)
_FLOAT32 = 4
_SHARE = 0.8  # of the memory that is available: what is left is for states, logits, and a matrix that is being rounded
_MOST = 32  # parameters of a byte of a checkpoint: more than any format has


def unloaded_if_large(request: Mapping[str, Any], arrays: Mapping[str, Array]) -> Unloaded | None:
    """Return the model without weights if those in float32 do not fit into memory; None if they do.

    Args:
        request: See `qeff_zoo.validation.reference.process`.
        arrays: The same.

    Raises:
        ValueError: They do not fit, and the model is no text decoder.
    """
    available, factors = available_memory(), request["settings"].get("rope_factors")
    if available is None or _FLOAT32 * _MOST * _stored(request) <= _SHARE * available:
        return None
    needed = _FLOAT32 * count_parameters(request, request["task"])
    if needed <= _SHARE * available:
        return None
    beside = [
        *(request.get(name) for name in ("sources", "speculator", "adapters", "device")),
        any(request.get("media") or ()),
        any(name.startswith("audio.") for name in arrays),
        (Path(request["checkpoint"]) / "adapter_config.json").is_file(),
    ]
    if contract.find(request["task"]).generates and not any(beside):
        return load_unloaded(request, request["task"], factors)
    if needed <= available:
        return None
    raise ValueError(
        f"Its float32 weights need {human_size(needed)} of memory, {human_size(available)} are available, and only "
        f"text decoders without adapters or draft heads are computed layer by layer; set {MEMORY_ENV} to the bytes "
        "that may be used if there are more."
    )


def _stored(request: Mapping[str, Any]) -> int:
    """Return the bytes of a checkpoint's weights."""
    folder = Path(request["checkpoint"])
    files = [Path(path) for path in request.get("gguf", ())] or folder.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What `reference` answers.

    Args:
        arrays: `variant.sequence` and losses.
        noticed: See `Noticing`.
        greedy: The greedy continuation.
    """

    arrays: dict[str, Array]
    noticed: dict[str, Any]
    greedy: list[int]


class Layerwise:
    """All variants of one model, as passes that take turns.

    Args:
        unloaded: The model, and its checkpoint.
        request: See `qeff_zoo.validation.reference.process`.
        answers: Answers of the model.
        choices: Routing of the model, and of the package.
    """

    def __init__(
        self, unloaded: Unloaded, request: Mapping[str, Any], answers: Answers, choices: Choices
    ) -> None:
        self._request, self._answers, self._choices = request, answers, choices
        self._numerics = Numerics.from_dict(request["numerics"])
        self._judged = "rounded" if self._numerics.rounds_weights else "reference"
        self._everyone = range(len(request["sequences"]))
        self._losses = answers.losses() if self._numerics.rounds_weights else None
        self._measured: dict[str, Array] = {}
        self._faults = [Fault.from_dict(entry) for entry in request["faults"]]
        weights = None if request.get("gguf") else decoded_weights(Path(request["checkpoint"]))
        orders = by_parameter(unloaded.model, weights.tensors, weights.orders) if weights else {}
        self._turns = Turns(
            unloaded, answers, self._numerics.matrices, orders, Preparation.of(request)
        )

    def run(self) -> Found:
        """Run everything."""
        passes = [(name, one) for name, every in self._passes().items() for one in every]
        found: dict[str, dict[Any, Any]] = {}
        for (name, _), result in zip(
            passes, self._turns.run([one for _, one in passes]), strict=True
        ):
            found.setdefault(name, {}).update(result)
        greedy = found.pop("greedy", {0: []})[0]
        found.pop("exact", None)  # its losses were measured
        noticed = self._notice(found)
        canaries = {f"canary.{number}" for number in _CANARIES}
        used = {entry["variant"] for entry in noticed["stages"].values()}
        used |= {entry["variant"] for entry in noticed["faults"]}
        arrays = {
            f"{variant}.{number}": array
            for variant, every in found.items()
            if variant in used or not (variant in canaries or variant.startswith("fault."))
            for number, array in every.items()
        }
        return Found(
            arrays=arrays | self._measured | self._follow_package(), noticed=noticed, greedy=greedy
        )

    def _passes(self) -> dict[str, list[Pass]]:
        """Return the passes of each variant; those with the checkpoint's weights first."""
        numerics, choices = self._numerics, self._choices
        simulating = partial(Arithmetic, self._turns.left_sides, halved=False)
        rounds = numerics.rounds_weights
        first = None if rounds else choices.note
        passes: dict[str, list[Pass]] = {}
        if losses := self._losses:  # nothing else is compared with exact weights
            scoring, read = self._scoring("reference", losses.number), len(losses.tokens)
            exact = _batch([losses.number], scoring=scoring, length=read, rounded=False)
            passes["exact"] = [exact]
        else:
            passes["reference"] = self._alone(first, rounded=False)
        if rounds:
            passes["rounded"] = self._alone(choices.note, scored="rounded")
        early = Early(self._request)
        length = early.each_stage if early.suffices_for_noise(self._answers) else None
        halving = partial(Arithmetic, halved=True)
        passes["noise"] = [
            _batch(group, choices.repeat, halving, length=length)
            for group in self._answers.groups(self._everyone, length)
        ]
        if numerics.int8_activations:
            passes["simulated"] = self._begun(self._everyone, early.short, within=simulating)
            whole = (
                self._alone
                if self._request.get("swapped")
                else partial(self._begun, self._everyone, early.short)
            )
            passes["swapped"] = whole(around=_damaging(SWAPPED))
        if numerics.activations == "float16":
            passes["half"] = self._alone(choices.repeat, around=_halving)
        numbers = {number for keys in self._request["stages"].values() for number, _ in keys}
        for number in _CANARIES:
            around = _damaging(HEADS[number])
            passes[f"canary.{number}"] = self._begun(
                sorted(numbers), early.each_stage, around=around
            )
        for number, fault in enumerate(self._faults):
            passes[f"fault.{number}"] = _of_fault(fault)
        if greedy := self._request.get("greedy"):
            run = partial(_follow, prompt=greedy["prompt"], tokens=greedy["tokens"])
            passes["greedy"] = [Pass(run=run, rounded=False)]
        return passes

    def _alone(
        self,
        watching: ChoiceRecorder | None = None,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
        scored: str = "",
        **how: Any,
    ) -> list[Pass]:
        return [
            _batch([number], watching, within, self._scoring(scored, number), **how)
            for number in self._everyone
        ]

    def _scoring(
        self, variant: str, number: int
    ) -> Callable[[Answers], AbstractContextManager[Any]]:
        """Return what measures the losses of a variant in a pass, if that reads their text."""
        losses = self._losses
        if not variant or losses is None or losses.number != number:
            return lambda _: nullcontext()

        @contextmanager
        def scoring(answers: Answers) -> Iterator[None]:
            with answers.scoring(losses, variant) as found:
                yield
            self._measured |= found

        return scoring

    def _begun(
        self,
        numbers: Sequence[int],
        length: int,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
        **how: Any,
    ) -> list[Pass]:
        """Return passes of the beginnings of sequences, see `Answers.beginnings`."""
        groups = (
            [[one] for one in numbers] if self._answers.plain else self._answers.groups(numbers)
        )

        def run(answers: Answers, group: list[int]) -> Mapping[int, Array]:
            with within():
                return answers.beginnings(group, length)

        return [Pass(run=partial(run, group=group), **how) for group in groups]

    def _notice(self, found: dict[str, dict[int, Array]]) -> dict[str, Any]:
        """Find the slightest damage that each stage notices, and the faults."""
        comparison = contract.find(self._request["task"]).comparison
        expected, *others = (
            [found[name][number] for number in self._everyone]
            for name in (self._judged, "noise", "half")
            if name in found
        )
        noticing = Noticing(self._request, comparison, expected, others)
        words = {}
        for number in _CANARIES:
            with damaged(self._answers.halves, HEADS[number]) as mutation:
                words[number] = mutation
        _, noticed = noticing.run(
            lambda number, _: (words[number], found[f"canary.{number}"]),
            lambda number: _whole(self._faults[number], found.get(f"fault.{number}", {})),
            _CANARIES,
        )
        return noticed

    def _follow_package(self) -> dict[str, Array]:
        """Run a sequence again for each run of the package that chose otherwise, as `reference` does."""
        choices, runs = self._choices, [*self._choices.differing()]
        if not runs:
            return {}
        answers = self._turns.run([_again(choices, run) for run in runs])
        return {
            f"{self._judged}.{choices.runs[run]}.{run}": array
            for run, array in zip(runs, answers, strict=True)
            if any(choices.followed[run]) and choices.excused
        }


def _batch(
    group: list[int],
    watching: ChoiceRecorder | None = None,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scoring: Callable[[Answers], AbstractContextManager[Any]] = lambda _: nullcontext(),
    length: int | None = None,
    **how: Any,
) -> Pass:
    """Return a pass of sequences, or their beginnings, in one batch."""

    def run(answers: Answers) -> dict[int, Array]:
        with within(), scoring(answers):
            return answers.batch(group, watching, length)

    return Pass(run=run, **how)


def _of_fault(fault: Fault) -> list[Pass]:
    """Return a pass for each sequence of a fault."""
    return [
        _with_fault(replace(fault, stops={number: stop})) for number, stop in fault.stops.items()
    ]


def _with_fault(fault: Fault) -> Pass:
    if fault.kind != "window":
        return Pass(run=lambda answers: answers.faulty(fault))
    ((number, stop),) = fault.stops.items()
    return Pass(
        run=lambda answers: {number: answers.run_prefix(number, stop)},
        around=lambda answers: narrow_window(answers.halves[0]),
    )


def _whole(fault: Fault, found: dict[int, Array]) -> dict[int, Array]:
    """Return the answers with a fault, nothing if it cannot be made in one of the sequences."""
    return found if found.keys() == fault.stops.keys() else {}


def _follow(answers: Answers, prompt: Sequence[int], tokens: Sequence[int]) -> dict[int, list[int]]:
    """Return the likeliest token behind a prompt, and behind each of the tokens that a package generated."""
    return {0: answers.likeliest(prompt, tokens)}


def _again(choices: Choices, run: int) -> Pass:
    number, length = choices.runs[run], choices.length(run)
    return Pass(run=lambda answers: answers.run_prefix(number, length, choices.following(run)))


def _damaging(change: HeadDamage) -> Around:
    return lambda answers: damaged(answers.halves, change)


def _halving(answers: Answers) -> AbstractContextManager[Any]:
    return in_float16(answers.halves[0])
