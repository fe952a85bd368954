# SPDX-License-Identifier: Apache-2.0
"""Content of a site, as the JSON API has it: models, architectures, packages and comparisons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: What a cell of model and target can be: compared with success, only named, compared without success, or nothing.
PROVED, DECLARED, RED, ABSENT = "proved", "declared", "red", "absent"
#: Levels of proof, from least to most.
LEVELS = ("none", "tiny", "emulated", "checkpoint", "simulated", "device", "task")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure of a comparison, and its threshold.

    Args:
        stage: Call that was compared: prefill, decode, ….
        metric: Name of the metric.
        value: Figure; None if it is not finite.
        op: Relation that must hold between the figure and the threshold.
        threshold: Threshold; None if it cannot be read.
        passed: Whether the relation holds.
        canary: Figure of a model that was damaged on purpose, which must fail; None without one.
    """

    stage: str
    metric: str
    value: float | None
    op: str
    threshold: float | None
    passed: bool
    canary: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison with Hugging Face's unpatched model, or a build that failed before it.

    Args:
        what: Compared object: a record, a package, or the tiny models of an architecture; "build" for a build that
            failed.
        target: Name of the target.
        weights: Storage format of the weights; empty if it is the architecture that was compared.
        level: Level of proof, one of `LEVELS`.
        passed: Whether every check passed.
        when: Time of the build, or empty.
        stale: Whether the compared graphs come from an earlier revision of the code.
        why: Reason of a failure, one line; empty if it passed.
        sentences: Findings in words.
        versions: Versions of the compared software.
        checks: All figures.
    """

    what: str
    target: str
    weights: str = ""
    level: str
    passed: bool
    when: str = ""
    stale: bool = False
    why: str = ""
    sentences: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """State of a model, or of an architecture, on a target.

    Args:
        target: Name of the target.
        state: `PROVED`, `DECLARED`, `RED` or `ABSENT`.
        level: Highest level of proof; "none" without one.
        how: Explanation of the state, in sentences.
        red: Reasons of failures, one line each, which a proved cell may have too.
    """

    target: str
    state: str
    level: str = "none"
    how: str
    red: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A package of a remote.

    Args:
        remote: URL of the remote.
        path: Folder of the package in the remote.
        name: Readable part of the path.
        key: First 16 hex digits of the build key.
        target: Name of the target.
        weights: Storage format of the weights.
        sizes: Options that set it apart from other packages, in words.
        context: Context length, or sequence lengths; empty without.
        size: Bytes of its files.
        memory: Bytes that a session needs at least: files of programs and weights, and states; None if unknown.
        finished: End of the build.
        level: Level of proof, one of `LEVELS`.
        signed: Whether the manifest has a signature.
        needs: Required software, with version ranges.
        notice: Notice of the index: "known bad: …"; empty without one.
        usable: Whether no notice advises against it.
        build: Seconds and peak memory of the build, in words; empty if unknown.
    """

    remote: str
    path: str
    name: str
    key: str
    target: str
    weights: str
    sizes: str
    context: str
    size: int
    memory: int | None
    finished: str
    level: str
    signed: bool
    needs: Mapping[str, str]
    notice: str
    usable: bool
    build: str


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured speed of a package in one case.

    Args:
        weights: Storage format of the weights.
        target: Name of the target.
        where: Machine of the measurement.
        batch_size: Number of concurrent requests.
        context: Tokens of prompt and answer; None for speech.
        prefill: Prompt tokens per second; None for speech.
        decode: Generated tokens per second; None if there is one token at most.
        ttft: Seconds to the first token; None for a model that labels frames.
        audio: Seconds of audio that are transcribed in a second; None for other tasks.
        memory: Bytes of peak memory.
    """

    weights: str
    target: str
    where: str
    batch_size: int
    context: int | None = None
    prefill: float | None = None
    decode: float | None
    ttft: float | None
    audio: float | None = None
    memory: int


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What models and architectures have in common.

    Args:
        name: Model id, name of a folder, or `model_type`.
        page: Path of its page, without suffix.
        task: Hub pipeline tag.
        special: Properties of the architecture.
        cells: One for each target.
        comparisons: Comparisons, the highest level first.
    """

    name: str
    page: str
    task: str
    special: str
    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def level(self) -> str:
        """Highest level of proof on any target."""
        return highest(cell.level for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class Model(Subject):
    """A model with packages or records, or one that is only named.

    Args:
        architecture: `model_type` of its recipe; empty if no recipe covers it.
        hub: Whether its name is a Hub id.
        license: Licence of the checkpoint; empty if unknown.
        revisions: Checkpoint commits.
        variants: Packages.
        speeds: Measured speed.
    """

    architecture: str
    hub: bool
    license: str
    revisions: tuple[str, ...]
    variants: tuple[Variant, ...]
    speeds: tuple[Speed, ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes of the smallest package; None without packages."""
        return min((variant.size for variant in self.variants), default=None)

    @property
    def weights(self) -> tuple[str, ...]:
        """Storage formats of its packages and records, sorted."""
        formats = {variant.weights for variant in self.variants}
        formats |= {comparison.weights for comparison in self.comparisons}
        return tuple(sorted(formats - {""}))


@dataclass(frozen=True, kw_only=True)
class Architecture(Subject):
    """An architecture with a recipe.

    Args:
        tasks: Hub pipeline tags that it serves, its default first.
        classes: Class names of transformers.
        models: Number of models of the site.
    """

    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    models: int


@dataclass(frozen=True, kw_only=True)
class Zoo:
    """Content of a site.

    Args:
        title: Title of the pages.
        models: Models, sorted by name.
        architectures: Architectures, sorted by name.
        targets: Names of all targets.
        remotes: URLs of the remotes.
    """

    title: str
    models: tuple[Model, ...]
    architectures: tuple[Architecture, ...]
    targets: tuple[str, ...]
    remotes: tuple[str, ...]


def highest(levels: Iterable[str]) -> str:
    """Return the highest of some levels; "none" without one."""
    return max(levels, key=LEVELS.index, default=LEVELS[0])


def number(value: Any) -> float | None:
    """Return a finite number of a file by others; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return converted if abs(converted) < float("inf") else None
