# SPDX-License-Identifier: Apache-2.0
"""Watching what Hugging Face's model chooses, and making it choose what is equally right by its own scores.

Only the reference process imports this. transformers' code computes every score; here the indices that `topk` or `max`
finds are read, or replaced. A replacement is followed where the scores of what is left out and of what is taken in its
place differ by less than the noise, which is measured: the same scores with every sum in another order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qeff_zoo.runtime.decoding.token_axis import as_it_was, by_token
from qeff_zoo.runtime.program import Array
from qeff_zoo.validation.trial.routing import members

_aten = torch.ops.aten
#: Operator -> what its choices are called, and which of its results has the indices.
_OPERATORS = {_aten.topk.default: ("topk", 1), _aten.max.dim: ("max", 1)}
_HIDDEN = -1e30  # scores below are of what may not be chosen
# Of all that is chosen the share that noise may explain: what it was seen to flip, within these bounds.
_LEAST_SHARE, _MOST_SHARE = 0.01, 0.2
#: Name of a choice, scores (batch, width, slots, n), indices (batch, width, slots, k) -> other indices, or None.
_Choose: TypeAlias = Callable[[str, Array, Array], Array | None]
#: Numbers of the sequences of a call, and their lengths -> what watches it.
ChoiceRecorder: TypeAlias = Callable[[Sequence[int], Sequence[int]], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Choices of one operator, (…, k), and how they were made.

    Args:
        indices: Final routing.
        near: Members that noise explains, and that would not have been chosen.
        equal: Members besides, in place of others with exactly the same scores.
    """

    indices: Array
    near: int
    equal: int


def follow(scores: Array, own: Array, package: Array, within: float) -> Followed:
    """Apply the package's routing where the scores make it equally right.

    Args:
        scores: (…, n).
        own: Routing of the model, (…, k).
        package: Routing of the package, (…, k or another number); indices that are not options are ignored.
        within: Largest difference of two scores whose order noise can flip.
    """
    mine, visible = members(own, scores.shape[-1]), scores > _HIDDEN
    packaged = members(package, scores.shape[-1])
    lost, gained = mine & ~packaged & visible, packaged & ~mine & visible
    count = lost.sum(-1)
    with np.errstate(invalid="ignore"):
        best_lost = np.where(lost, scores, -np.inf).max(-1)
        gap = best_lost - np.where(gained, scores, np.inf).min(-1)
    excused = (count > 0) & (count == gained.sum(-1)) & (gap <= within)
    if not excused.any():
        return Followed(indices=own, near=0, equal=0)
    rows = scores[excused]
    chosen = (mine & ~lost | gained)[excused]
    order = np.lexsort((-rows, ~chosen), axis=-1)[..., : own.shape[-1]]
    indices = own.copy()
    indices[excused] = order
    return Followed(
        indices=indices,
        near=int(count[excused & (gap > 0)].sum()),
        equal=int(count[excused & (gap <= 0)].sum()),
    )


@dataclass(kw_only=True)
class _SequenceChoices:
    """What one sequence chose by itself.

    Args:
        calls: Number of choices by kind.
        indices: Indices by choice, (tokens, slots, k).
        places: Indices and the runner-up by choice, (tokens, slots, k + 1).
        scores: Scores of those places.
    """

    calls: Counter[str] = field(default_factory=Counter)
    indices: dict[str, Array] = field(default_factory=dict)
    places: dict[str, Array] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)


_UNWATCHED: ContextVar[bool] = ContextVar("unwatched", default=False)


@contextmanager
def unwatched() -> Iterator[None]:
    """Leave choices alone that are not the model's, for a while."""
    token = _UNWATCHED.set(True)
    try:
        yield
    finally:
        _UNWATCHED.reset(token)


class _Watch(TorchDispatchMode):
    """Hands every choice of a call to a function, which may return other indices.

    Args:
        kinds: Kinds of routing that matter.
        shape: Rows and tokens of the call.
        choose: Called with every choice.
        calls: Counts them by kind.
    """

    def __init__(
        self, kinds: set[str], shape: tuple[int, int], choose: _Choose, calls: Counter[str]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kinds, self._shape, self._choose, self._calls = kinds, shape, choose, calls

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        kind, output_index = _OPERATORS.get(func, ("", 0))
        if _UNWATCHED.get() or kind not in self._kinds or not args[0].is_floating_point():
            return result
        given: Tensor = args[0]
        name = f"{kind}.{self._calls[kind]}"
        self._calls[kind] += 1
        dim = (*args, -1)[output_index + 1] if kind == "topk" else args[1]
        if dim % given.dim() != given.dim() - 1:
            return result
        keeps = result[1].dim() == given.dim()
        indices = result[1] if keeps else result[1][..., None]
        scores, own = (by_token(one.numpy(), *self._shape) for one in (given, indices))
        if scores is None or own is None:
            return result
        chosen = self._choose(name, scores, own)
        if chosen is None or chosen is own:
            return result
        as_given = as_it_was(chosen, given.shape, *self._shape)
        tensor = torch.from_numpy(np.ascontiguousarray(as_given))
        values = given.gather(-1, tensor)
        both = (values, tensor) if keeps else (values[..., 0], tensor[..., 0])
        return type(result)(both)


class Choices:
    """What sequences chose by themselves, how noisy their scores were, and what a package chose.

    Args:
        runs: Number of the sequence of each run of the package.
        chosen: `run.choice` -> (tokens, slots, k).
        factor: Times the noise that scores may differ.
        least: Difference that is always allowed, in units of their spread.
    """

    def __init__(
        self, runs: Sequence[int], chosen: Mapping[str, Array], *, factor: float, least: float
    ) -> None:
        self.runs, self._factor, self._least = runs, factor, least
        self._chosen: list[dict[str, Array]] = [{} for _ in runs]
        for key, indices in chosen.items():
            run, _, name = key.partition(".")
            self._chosen[int(run)][name] = indices
        self._expected = Counter(_kind(name) for name in (self._chosen[0] if runs else ()))
        self._sequences: dict[int, _SequenceChoices] = {}
        self._noise: dict[str, float] = {}
        self._spread: dict[str, float] = {}
        self._turned = [0, 0]  # members that noise would have chosen otherwise, and all
        #: By run, what `follow` counted.
        self.followed: dict[int, list[int]] = {}

    def note(self, numbers: Sequence[int], lengths: Sequence[int]) -> AbstractContextManager[Any]:
        """Watch one sequence choose by itself."""
        sequence = self._sequences[numbers[0]] = _SequenceChoices()

        def choose(name: str, scores: Array, own: Array) -> None:
            visible = scores[_noisy(scores)]
            spread = float(visible.std(dtype=np.float64)) if visible.size else 0.0
            self._spread[name] = max(self._spread.get(name, 0.0), spread)
            rest = np.where(members(own, scores.shape[-1]), -np.inf, scores)
            indices = np.concatenate([own, rest.argmax(-1)[..., None]], -1)
            sequence.indices[name], sequence.places[name] = own[0], indices[0]
            sequence.scores[name] = np.take_along_axis(scores, indices, -1)[0]

        return self._watch(lengths, choose, sequence.calls)

    def repeat(self, numbers: Sequence[int], lengths: Sequence[int]) -> AbstractContextManager[Any]:
        """Let sequences in a batch choose as each did by itself, and measure how far their scores lie from those."""
        every = [self._sequences[number] for number in numbers]

        def choose(name: str, scores: Array, own: Array) -> Array | None:
            if any(name not in sequence.indices for sequence in every):
                return None
            wanted = np.full_like(own, -1)
            for row, (sequence, length) in enumerate(zip(every, lengths, strict=True)):
                wanted[row, :length, :, : sequence.indices[name].shape[-1]] = sequence.indices[name]
                self._compare(name, sequence, scores[row, :length])
            followed = follow(scores, own, wanted, np.inf)
            self._turned[0] += followed.near
            self._turned[1] += int((wanted >= 0).sum())
            return followed.indices

        return self._watch(lengths, choose, Counter())

    def differing(self) -> Iterator[int]:
        """Yield the runs in which the package chose otherwise than the sequence by itself."""
        for run, number in enumerate(self.runs):
            sequence = self._sequences[number]
            if any(_differs(sequence, name, package) for name, package in self._of(run).items()):
                yield run

    def following(self, run: int) -> ChoiceRecorder:
        """Let a sequence choose, as far as a run goes, as the package did wherever that is as right."""
        every, counts = self._of(run), self.followed.setdefault(run, [0, 0])

        def choose(name: str, scores: Array, own: Array) -> Array | None:
            ours = every.get(name)
            if ours is None or len(ours) > scores.shape[1] or ours.shape[1] != scores.shape[2]:
                return None
            package = np.full((1, scores.shape[1], *ours.shape[1:]), -1)
            package[0, : len(ours)] = ours
            followed = follow(scores, own, package, self.within(name))
            counts[0] += followed.near
            counts[1] += followed.equal
            return followed.indices

        return lambda _, lengths: self._watch(lengths, choose, Counter())

    def length(self, run: int) -> int:
        """Return the tokens of a run."""
        return len(next(iter(self._chosen[run].values())))

    def within(self, name: str) -> float:
        """Return how far apart two scores may be whose order noise can flip: one may rise, and one fall."""
        least = self._least * self._spread.get(name, 0.0)
        return 2 * max(self._factor * self._noise.get(name, 0.0), least)

    @property
    def excused(self) -> bool:
        """Whether noise explains all differences in routing."""
        summary = self.summary()
        return bool(summary["share"] <= summary["allowed_share"])

    def summary(self) -> dict[str, Any]:
        """Return the number of routed choices, of replaced ones, and the maximum."""
        total = sum(indices.size for every in self._chosen for indices in every.values())
        turned, all_ = self._turned
        allowed = max(self._factor * turned / max(1, all_), _LEAST_SHARE)
        near, equal = (sum(count[at] for count in self.followed.values()) for at in (0, 1))
        return {
            "made": total,
            "near": near,
            "equal": equal,
            "share": near / max(1, total),
            "allowed_share": min(allowed, _MOST_SHARE),
            "runs": {str(run): count for run, count in self.followed.items() if any(count)},
        }

    def _compare(self, name: str, sequence: _SequenceChoices, scores: Array) -> None:
        expected, got = sequence.scores[name], np.take_along_axis(scores, sequence.places[name], -1)
        visible = _noisy(expected) & _noisy(got)
        apart = np.abs(expected[visible].astype(np.float64) - got[visible])
        self._noise[name] = max(self._noise.get(name, 0.0), float(apart.max(initial=0)))

    def _of(self, run: int) -> dict[str, Array]:
        """Return what a run chose, of kinds of which its sequence makes as many choices."""
        calls = self._sequences[self.runs[run]].calls
        return {
            name: indices
            for name, indices in self._chosen[run].items()
            if calls[_kind(name)] == self._expected[_kind(name)]
        }

    def _watch(
        self, lengths: Sequence[int], choose: _Choose, calls: Counter[str]
    ) -> AbstractContextManager[Any]:
        if not self._expected:
            return nullcontext()
        return _Watch({*self._expected}, (len(lengths), max(lengths)), choose, calls)


def _noisy(scores: Array) -> Array:
    """Mark the scores that are numbers: not those of hidden options, nor of fixed ones."""
    return np.abs(scores) < -_HIDDEN


def _kind(name: str) -> str:
    return name.partition(".")[0]


def _differs(sequence: _SequenceChoices, name: str, package: Array) -> bool:
    """Whether a package left out a visible option that a sequence chose."""
    if name not in sequence.indices:
        return False
    own, scores = (
        sequence.indices[name][: len(package)],
        sequence.scores[name][: len(package), ..., :-1],
    )
    if own.shape[:2] != package.shape[:2]:
        return False
    chosen = members(package, int(max(own.max(), package.max())) + 1)
    missing = ~np.take_along_axis(chosen, own, -1) & (scores > _HIDDEN)
    return bool(missing.any())
