# SPDX-License-Identifier: Apache-2.0
"""The tree of errors. A message has what failed, the value, what was expected, and what to do next.

ZooError                    the user can act on it; the command line prints it and exits with 1
├── UnsupportedModelError   no recipe, or the recipe refuses this checkpoint
├── CheckpointError         a checkpoint that is missing, damaged, or at odds with its own config
├── AdapterError            an adapter that cannot be read, or does not fit a model or a package
├── SpeculatorError         heads that draft which cannot be read, or are damaged
├── PlanError               choices that conflict; lists every conflict
├── ExportError             the graph could not be made, or is not what the recipe promises
├── CompileError            a target could not lower or compile the graph
├── ParityError             the result disagrees with the Hugging Face reference
├── PackageError            a package that is damaged, foreign, or not what was asked for
├── StoreError              no room, no permission, or another process in the way
├── OutOfMemoryError        less memory than a stage of the work needs
├── GenerationError         a request that the package cannot serve
│   ├── BusyError           more requests than are allowed at a time
│   ├── ContextLengthError  a prompt that the context cannot hold
│   ├── HandoffError        states of a prompt that another process does not hand over
│   └── MediaError          a picture or a recording that cannot be read, or is too large
├── ServingError            a server that cannot start
├── TrainingError           a training run that cannot begin, or cannot go on
├── SettingsError           a settings file or variable with a value that is not allowed
├── RemoteError             a place where packages are shared cannot be reached, or is not what it claims
├── ResolutionError         no shared package does what was asked for
├── PublishError            a package that must not, or could not, be published
└── TrustError              a manifest or an index that the trust policy refuses
"""

from collections.abc import Callable
from types import TracebackType


class ZooError(Exception):
    """Base of every error a user can act on.

    Attributes:
        exit_code: Exit code of the command line.
    """

    exit_code = 1


class UnsupportedModelError(ZooError):
    """No recipe covers the model, or its recipe refuses it by name."""


class CheckpointError(ZooError):
    """A checkpoint cannot be read, is incomplete, or disagrees with its config."""


class AdapterError(ZooError):
    """An adapter (LoRA) cannot be read, or does not fit the model or the package that it was given to."""


class SpeculatorError(ZooError):
    """Draft heads cannot be read, or contradict their configuration."""


class PlanError(ZooError):
    """The requested choices conflict.

    Args:
        problems: One full sentence each, all of them, in the order found.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class ExportError(ZooError):
    """A model could not be turned into a graph that keeps its recipe's promises."""


class CompileError(ZooError):
    """A target could not lower or compile a graph."""


class ParityError(ZooError):
    """A package disagrees with the Hugging Face reference."""


class PackageError(ZooError):
    """A package is damaged, has an unknown schema, or is of another kind than required."""


class StoreError(ZooError):
    """The store has no room, no permission, or is held by another process."""


class OutOfMemoryError(ZooError):
    """A stage of the work needs more memory than there is."""


class GenerationError(ZooError):
    """A request cannot be served by the package it was given to."""


class BusyError(GenerationError):
    """More requests wait than are allowed; the same request can be served later."""


class HandoffError(GenerationError):
    """A prompt's states do not come from the process that was to compute them, or are of something else."""


class ContextLengthError(GenerationError):
    """A prompt has more tokens than the context holds."""


class MediaError(GenerationError):
    """An image or a recording is unreadable, damaged, or larger than allowed."""


class ServingError(ZooError):
    """A server cannot start: its address is taken, or there is no API for the package's task."""


class TrainingError(ZooError):
    """A training run cannot begin or go on: its data, its device or its folder will not do."""


class SettingsError(ZooError):
    """The settings file, or a variable in its place, has a value that is not allowed."""


class RemoteError(ZooError):
    """A remote cannot be read or written, or holds what it must not.

    Args:
        message: Description of the failure.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds that the server asks to wait before that.
    """

    def __init__(self, message: str, *, retryable: bool = False, retry_after: float = 0.0) -> None:
        self.retryable, self.retry_after = retryable, retry_after
        super().__init__(message)


class ResolutionError(ZooError):
    """No shared package matches the request."""


class PublishError(ZooError):
    """A package must not be published, or its publication did not succeed."""


class TrustError(ZooError):
    """The trust policy refuses a manifest, or an index is older than the cached one."""


def is_panic(kind: type[BaseException] | None) -> bool:
    """Return whether an error's class is that of panics in Rust: it is no `Exception`, and cannot be imported."""
    return kind is not None and kind.__name__ == "PanicException"


class Translating:
    """Context that raises an error of ours in place of one of a library that raises nothing narrower than `Exception`.

    Args:
        translate: Returns our error, or None to let the library's pass; its argument may be a panic, too.
    """

    def __init__(self, translate: Callable[[BaseException], ZooError | None]) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise what the caller can act on."""
        if error is None or not (isinstance(error, Exception) or is_panic(kind)):
            return
        if ours := self._translate(error):
            raise ours from error
