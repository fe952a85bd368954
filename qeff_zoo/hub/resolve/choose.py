# SPDX-License-Identifier: Apache-2.0
"""Choice among packages, and the reason against each of the others. Without network and disk.

In: index entries and the requested options. Out: a `Candidate` for each entry, the best first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.naming import is_named, notice_text
from qeff_zoo.package.manifest import VALIDATED

from . import axes

#: From a tool's name to its version here, or None.
Installed = Callable[[str], str | None]

#: What may be the reason of a refusal, beside the axes of a package.
_KEY, _REVISION, _NOTICE, _TRUST = "key", "revision", "notice", "trust"


@dataclass(frozen=True)
class Refusal:
    """One reason not to take a package.

    Args:
        axis: Subject: an axis, a tool, "revision", "key", "notice" or "trust".
        reason: Reason in words: "ctx_len is 2048, requested is at least 4096".
    """

    axis: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A package that was looked at.

    Args:
        entry: Index entry of the package.
        remote: URL of the remote that has it; None if only the store does.
        here: Folder of the package in the store; None if it must be pulled.
        distrusted: Why the trust policy refuses it, as far as that is known before it is read; empty if it does not.
        refused: Every reason not to take it; none if it will do.
        warnings: Warnings about the package.
        notice: Current notice about it; before the judgement, the last one of its remote.
    """

    entry: Entry
    remote: str | None = None
    here: Path | None = None
    distrusted: str = ""
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    notice: Notice | None = None

    @property
    def is_only_distrusted(self) -> bool:
        """Whether it would do, were it trusted."""
        return {refusal.axis for refusal in self.refused} == {_TRUST}

    @property
    def difference(self) -> str:
        """All that stands in its way, in words."""
        return "; ".join(refusal.reason for refusal in self.refused)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Requirements of a package.

    Args:
        axes: Requested values by axis; omitted axes are chosen here.
        preferred: Preferred values among matching packages: the recipe's defaults.
        revision: Checkpoint commit, 40 hex digits or a prefix; None for any.
        key: Name of the one package that will do, see `qeff_zoo.hub.naming`; None for any.
    """

    axes: Mapping[str, Any] = field(default_factory=dict)
    preferred: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    key: str | None = None


def decide(
    candidates: Iterable[Candidate],
    wanted: Wanted,
    notices: Mapping[str, Notice],
    here: Installed,
) -> list[Candidate]:
    """Judge every candidate, and put them in order.

    Args:
        candidates: Not judged yet.
        wanted: Requirements.
        notices: Notices of the index, by path.
        here: Installed versions.

    Returns:
        Those that will do, the best first; then the others, the nearest first.
    """
    judge = _Judge(wanted, notices, here)
    judged = [judge(candidate) for candidate in candidates]
    # Of equals the newer stays first, and what is here.
    judged.sort(key=lambda one: (one[1].entry.finished, one[1].here is not None), reverse=True)
    judged.sort(key=itemgetter(0))
    return [candidate for _, candidate in judged]


@dataclass(frozen=True)
class _Verdict:
    """Judgement of all packages with the same axes, needs and versions.

    Args:
        refused: Why they will not do.
        warnings: Open questions about them.
        far: Sum of the distances.
        lack: Difference to larger requested sizes.
        foreign: Deviations from preferred values, without those of requested ones.
        surplus: Excess over requested sizes, then over those that a build would choose.
    """

    refused: tuple[Refusal, ...]
    warnings: tuple[str, ...]
    far: int
    lack: float
    foreign: list[Any]
    surplus: list[Any]


class _Judge:
    """Compares candidates with the requirements, once for each kind."""

    def __init__(self, wanted: Wanted, notices: Mapping[str, Notice], here: Installed) -> None:
        self._wanted, self._notices, self._here = wanted, notices, cache(here)
        self._verdicts: dict[str, _Verdict] = {}
        self._requested = _in_order(wanted.axes.items())
        ours = [
            (axis, value) for axis, value in wanted.preferred.items() if axis not in wanted.axes
        ]
        self._kinds = [item for item in ours if axes.rule_of(item[0]).kind == "exact"]
        self._sizes = [item for item in ours if item not in self._kinds]

    def __call__(self, candidate: Candidate) -> tuple[tuple[Any, ...], Candidate]:
        """Judge one; gives its rank too, by which it comes before others."""
        entry = candidate.entry
        kind = f"{entry.axes} {entry.needs} {entry.tested}"
        if (verdict := self._verdicts.get(kind)) is None:
            verdict = self._verdicts[kind] = self._verdict(entry)
        notice = self._notices.get(entry.path) or candidate.notice
        refused, warnings = self._of_entry(entry, notice)
        if candidate.distrusted:
            refused.append(Refusal(_TRUST, candidate.distrusted))
        judged = replace(
            candidate,
            refused=(*refused, *verdict.refused),
            warnings=(*warnings, *verdict.warnings),
            notice=notice,
        )
        if judged.refused:
            other = any(refusal.axis == _KEY for refusal in refused)
            return (1, other, verdict.far + _distance(refused), verdict.lack), judged
        level = -VALIDATED.index(entry.validated)
        doubted = bool(judged.warnings)
        superseded = notice is not None and notice.state == "superseded"
        return (0, superseded, verdict.foreign, doubted, verdict.surplus, level), judged

    def _verdict(self, entry: Entry) -> _Verdict:
        actual = entry.axes
        reasons = (
            (axis, axes.refusal(axis, requested, actual.get(axis)))
            for axis, requested in self._requested
        )
        refused = [Refusal(axis, reason) for axis, reason in reasons if reason]
        refused += [Refusal(*each) for each in obstacles(entry.needs, self._here)]
        return _Verdict(
            refused=tuple(refused),
            warnings=tuple(doubts(entry.needs, entry.tested, self._here)),
            far=_distance(refused),
            lack=sum(
                axes.lack(axis, requested, actual.get(axis)) for axis, requested in self._requested
            ),
            foreign=[axes.apart(value, actual.get(axis)) for axis, value in self._kinds],
            surplus=[
                [
                    axes.excess(axis, requested, actual.get(axis))
                    for axis, requested in self._requested
                ],
                [axes.apart(value, actual.get(axis)) for axis, value in self._sizes],
            ],
        )

    def _of_entry(self, entry: Entry, notice: Notice | None) -> tuple[list[Refusal], list[str]]:
        refused, warnings = [], []
        wanted = self._wanted
        pinned = wanted.key is not None and is_named(wanted.key, entry.path)
        if wanted.key is not None and not pinned:
            refused.append(Refusal(_KEY, f"it is another one, asked for {wanted.key}"))
        if wanted.revision and not (entry.revision or "").startswith(wanted.revision):
            reason = f"revision is {entry.revision or 'not known'}, asked for {wanted.revision}"
            refused.append(Refusal(_REVISION, reason))
        if notice:
            text = notice_text(notice)
            if notice.state == "known_bad" or (notice.state == "yanked" and not pinned):
                refused.append(Refusal(_NOTICE, text))
            else:
                warnings.append(f"It is {text}.")
        if entry.validated == "none":
            warnings.append("It was not compared with the Hugging Face model.")
        return refused, warnings


def _distance(refused: Iterable[Refusal]) -> int:
    return sum(axes.rule_of(refusal.axis).distance for refusal in refused)


def _in_order(requested: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sizes as the table has them, so that the most important excess is compared first."""
    order = [*axes.RULES]
    return sorted(requested, key=lambda item: order.index(item[0]) if item[0] in order else -1)


# --- whether what is installed here runs it ----------------------------------------------------


def obstacles(needs: Mapping[str, str], here: Installed) -> Iterator[tuple[str, str]]:
    """Return the tools whose installed version is not one that a package needs, and why that will not do.

    Args:
        needs: Version ranges by tool.
        here: Installed versions.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    for tool, wanted in needs.items():
        installed = here(tool)
        try:
            if installed is not None and not SpecifierSet(wanted).contains(
                installed, prereleases=True
            ):
                yield tool, f"{tool} is {installed}, it needs {wanted}"
        except (InvalidSpecifier, InvalidVersion):
            yield tool, f"{tool} is {installed}, and what it needs cannot be compared: {wanted}"


def doubts(needs: Mapping[str, str], tested: Mapping[str, str], here: Installed) -> Iterator[str]:
    """Return what is not known about running a package here.

    Args:
        needs: Version ranges by tool.
        tested: Versions that it was compiled and compared with.
        here: Installed versions.
    """
    for tool in dict.fromkeys([*needs, *tested]):
        installed, known = here(tool), tested.get(tool)
        if installed is None and tool in needs:
            wanted = f" {needs[tool]}" if needs[tool] else ""
            yield f"It needs {tool}{wanted}, which is not installed here, so that this was not checked."
        elif installed is not None and known is not None and installed != known.partition("+")[0]:
            yield f"It was tested with {tool} {known}, and {installed} is installed."
