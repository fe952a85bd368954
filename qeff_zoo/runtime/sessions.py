# SPDX-License-Identifier: Apache-2.0
"""A package in, the session of its task out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from qeff_zoo import targets
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.runtime.feature_extraction import EmbeddingSession
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.runtime.images import ImageClassificationSession, ImageEmbeddingSession
from qeff_zoo.runtime.program import Observe, Observed, Program
from qeff_zoo.runtime.text_classification import TextClassificationSession
from qeff_zoo.runtime.text_generation import TextGenerationSession
from qeff_zoo.runtime.token_classification import TokenClassificationSession
from qeff_zoo.tasks import NAMES, find

Session: TypeAlias = (
    TextGenerationSession
    | ImageTextToTextSession
    | EmbeddingSession
    | TextClassificationSession
    | TokenClassificationSession
    | ImageClassificationSession
    | ImageEmbeddingSession
)
#: Opens a program, told `threads` and `choices` as `qeff_zoo.targets.Target.open` is.
Opening: TypeAlias = Callable[..., Program]


def open_session(
    package: Package,
    *,
    threads: int | None = None,
    prefix_cache_bytes: int | None = None,
    observe: Observe | None = None,
    lean: bool = False,
    opening: Opening | None = None,
) -> Session:
    """Open a package to run it.

    Args:
        package: For a target that runs here.
        threads: CPU threads that compute one operator; None for one per physical core.
        prefix_cache_bytes: Of text generation, memory for prompts that begin alike; 0 for none, None for the default.
        observe: Told of every call, its choices of experts and keys included.
        lean: For a few calls: copy no weights to make calls faster.
        opening: Opens what runs in place of the package's program; None for that itself.

    Raises:
        GenerationError: Its target or its task cannot be run here, or it does not fit into memory.
        PackageError: Its files are damaged, or do not belong together.
    """
    if package.target not in targets.NAMES:
        raise GenerationError(
            f"Package {str(package.path)!r} is for target {package.target!r}; expected "
            f"{' or '.join(map(repr, targets.NAMES))}, which runs here. Build the model with --target "
            f"{targets.NAMES[0]}."
        )
    if package.task not in NAMES:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}; expected "
            f"{' or '.join(NAMES)}. Run a package of such a task."
        )
    task = find(package.task)
    choices: dict[str, Any] = {}
    if prefix_cache_bytes is not None and task.role == "decoder":
        choices = {"prefix_cache_bytes": prefix_cache_bytes}
    if task.reads == "image":
        named = package.manifest["spec"]["recipe"].get("image_processor")
        choices = {"image_processor": named}
    target = targets.find(package.target)
    with _fitting(package):
        answering, *before = package.programs
        opening = opening or partial(target.open, package, answering.role, lean=lean)
        opened = opening(threads=threads, choices=observe is not None)
        observed = Observed(opened, observe) if observe else opened
        for program in before:
            choices[program.role] = target.open(package, program.role, threads=threads, lean=lean)
        if before:
            choices["chosen"] = package.manifest["spec"]["task"]
        session: Session = task.session()(package.path, observed, **choices)
    return session


@contextmanager
def _fitting(package: Package) -> Iterator[None]:
    """Say what does not fit where a graph, its configuration and the manifest are at odds, in whatever way."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise PackageError(
            f"Package {str(package.path)!r} cannot be opened: its files do not fit its manifest, or each other "
            f"({type(error).__name__}: {error}). Expected those of one build. Build or pull it again."
        ) from error
