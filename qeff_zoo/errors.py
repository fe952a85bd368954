# SPDX-License-Identifier: Apache-2.0
"""The exception hierarchy. A message has four parts: what failed, the value, what was expected, and what to do next.

ZooError                    base class: the user can act on it; the command line prints it and exits with 1
├── UnsupportedModelError   no recipe, or the recipe refuses this checkpoint
├── MissingNameError        a name of QEfficient's that has no counterpart
├── CheckpointError         a checkpoint that is missing, damaged, or at odds with its own config
├── AdapterError            an adapter that cannot be read, or does not fit a model or a package
├── SpeculatorError         draft heads that cannot be read, or are damaged
├── PlanError               options that conflict; lists every conflict
├── ExportError             a model that cannot be traced, or a graph that contradicts the recipe
├── CompileError            a target could not lower or compile the graph
├── ParityError             the result disagrees with the Hugging Face reference
├── PackageError            a package that is damaged, foreign, or of another kind than required
├── StoreError              no room, no permission, or a lock held by another process
├── OutOfMemoryError        less memory than a stage of the work needs
├── GenerationError         a request that the package cannot serve
│   ├── BusyError           more requests than the limit
│   ├── ContextLengthError  a prompt that exceeds the context
│   ├── HandoffError        KV states of a prompt that a prefill server does not deliver
│   ├── NoTokenError        a grammar and sampling parameters that allow no next token
│   └── MediaError          an image, audio or video file that cannot be read, or is too large
├── ServingError            a server that cannot start
├── TrainingError           a training run that cannot start or continue
├── FarmError               a zoo file that cannot be used, or a cluster that cannot build it
├── SettingsError           a settings file or variable with a value that is not allowed
├── RemoteError             a remote that cannot be reached, or has invalid content
├── ResolutionError         no shared package matches the request
├── PublishError            a package that must not be published, or a publication that failed
└── TrustError              a manifest or an index that the trust policy refuses
"""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType


class ZooError(Exception):
    """Base class of every error that a user can act on.

    Attributes:
        exit_code: Exit code of the command line for this error.
    """

    exit_code = 1


class UnsupportedModelError(ZooError):
    """The model has no recipe, or its recipe refuses the checkpoint by name."""


class MissingNameError(ZooError, ImportError):
    """A module or a name of QEfficient's has no counterpart in qeff_zoo.qefficient."""


class CheckpointError(ZooError):
    """A checkpoint cannot be read, is incomplete, or contradicts its config."""


class AdapterError(ZooError):
    """A LoRA adapter cannot be read, or does not fit the model or package."""


class SpeculatorError(ZooError):
    """Draft heads cannot be read, or contradict their configuration."""


class PlanError(ZooError):
    """The requested options conflict.

    Args:
        problems: All conflicts, one full sentence each, in the order of their detection.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class ExportError(ZooError):
    """A model cannot be traced to a graph, or the graph contradicts its recipe."""


class CompileError(ZooError):
    """A target cannot lower or compile a graph."""


class ParityError(ZooError):
    """A package disagrees with the Hugging Face reference."""


class PackageError(ZooError):
    """A package is damaged, has an unknown schema, or is of another kind than required."""


class StoreError(ZooError):
    """The store has no room, no permission, or is held by another process."""


class OutOfMemoryError(ZooError):
    """A stage of the work needs more memory than is available."""


class GenerationError(ZooError):
    """A package cannot serve a request."""


class BusyError(GenerationError):
    """The queue is full; the same request may succeed later."""


class HandoffError(GenerationError):
    """KV states of a prompt do not arrive from their prefill server, or belong to another package or prompt."""


class ContextLengthError(GenerationError):
    """A prompt has more tokens than the context."""


class NoTokenError(GenerationError):
    """The grammar and the sampling parameters of a request allow no next token."""


class MediaError(GenerationError):
    """An image, audio or video file is unreadable, damaged, or larger than allowed."""


class ServingError(ZooError):
    """A server cannot start: its address is taken, or there is no API for the package's task."""


class TrainingError(ZooError):
    """A training run cannot start or continue: its data, device or folder is unsuitable."""


class FarmError(ZooError):
    """A zoo file cannot be used, or the machines cannot build it.

    Args:
        subject: Zoo file or cluster.
        problems: All problems, one full sentence or more each.
    """

    def __init__(self, subject: object, problems: Sequence[str]) -> None:
        self.problems = [*problems]
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"Cannot use {str(subject)!r}:{lines}")


class SettingsError(ZooError):
    """The settings file, or an environment variable in its place, has an invalid value."""


class RemoteError(ZooError):
    """A remote cannot be read or written, or has invalid content.

    Args:
        message: Description of the failure.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds to wait before another request, as the server requires.
    """

    def __init__(self, message: str, *, retryable: bool = False, retry_after: float = 0.0) -> None:
        self.retryable, self.retry_after = retryable, retry_after
        super().__init__(message)


class ResolutionError(ZooError):
    """No shared package matches the request."""


class PublishError(ZooError):
    """A package must not be published, or its publication failed."""


class TrustError(ZooError):
    """The trust policy refuses a manifest, or an index is older than the cached one."""


def did_you_mean(
    name: str,
    known: Iterable[str],
    show: Callable[[str], str] = repr,
    *,
    most: int = 1,
    cutoff: float = 0.75,
) -> str:
    """Return the question for the nearest names, after a space: " Did you mean 'llama'?"; empty without a near name.

    Args:
        name: The unknown name.
        known: Known names.
        show: Function that writes a known name.
        most: Maximum number of names.
        cutoff: Least similarity, from 0 to 1.
    """
    near = nearest(name, known, most=most, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(show, near))}?" if near else ""


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.75) -> list[str]:
    """Return the nearest names, the best first; see `did_you_mean`."""
    from difflib import get_close_matches  # for an error alone

    return get_close_matches(name, [*known], most, cutoff)


def is_panic(kind: type[BaseException] | None) -> bool:
    """Return whether an error's class is that of Rust panics, which is no `Exception` and cannot be imported."""
    return kind is not None and kind.__name__ == "PanicException"


class Translating:
    """Context manager that replaces errors of a library that raises nothing narrower than `Exception`.

    Args:
        translate: Function that returns our error, or None to re-raise the library's; its argument may also be a
            panic.
    """

    def __init__(self, translate: Callable[[BaseException], ZooError | None]) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise our error in place of the library's."""
        if error is None or not (isinstance(error, Exception) or is_panic(kind)):
            return
        if ours := self._translate(error):
            raise ours from error
