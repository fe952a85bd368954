# SPDX-License-Identifier: Apache-2.0
"""Opening of packages: a package in, the session of its task out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from qeff_zoo import targets
from qeff_zoo.checkpoint.draft_heads import ROLES
from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT, NAMES, TEXT_GENERATION, find
from qeff_zoo.disk.processes import hold
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.graph.states import VISION_SIZE
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME
from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.engine.speculation import EXACT, LOOKUP, Acceptance, Own
from qeff_zoo.runtime.engine.speculation.opening import speculation_of
from qeff_zoo.runtime.engine.text_generation import TextGenerationSession
from qeff_zoo.runtime.program import Observe, Observed, Program
from qeff_zoo.runtime.text.tokenizer import Tokenizer, sharing_tokenizers
from qeff_zoo.targets.base import OpenOptions

#: Opens a program by its role.
Opening: TypeAlias = Callable[[str, OpenOptions], Program]


class Session(Protocol):
    """Session of a package; the class of its task has the methods that run it, such as `generate` or `classify`."""

    folder: Path

    @property
    def task(self) -> str:
        """Task of the package."""


def open_session(
    package: Package,
    *,
    threads: int | None = None,
    prefixes: PrefixCacheOptions | None = None,
    draft: Package | Own | None = None,
    acceptance: Acceptance = EXACT,
    block_attention: bool = False,
    observe: Observe | None = None,
    smoke_test: bool = False,
    opening: Opening | None = None,
) -> Session:
    """Open a package to run it.

    Args:
        package: A package for a target that runs on this machine.
        threads: CPU threads that compute one operator; None for one per physical core.
        prefixes: Options of the prefix cache (text generation); None for the defaults.
        draft: Draft for speculative decoding (text generation): a package of a smaller model; "heads" for the draft
            heads that this package was built with; "lookup" for prompt lookup; None for none. The cost of calls is
            measured first.
        acceptance: Acceptance of a draft model's tokens: those that the request samples as well, so that a seed gives
            the same answer; or "rejection" for more of them, of the same distribution.
        block_attention: Whether requests may have documents that are computed independently (block attention, text
            generation). The rotation of the model's keys is inferred first.
        observe: Callback for every call, its choices of experts and keys included.
        smoke_test: Whether the session makes one call that shows that it can run; the result may be meaningless.
        opening: Opens what runs in place of the package's programs; None for those themselves.

    Raises:
        GenerationError: If its target or task is not supported here, or it does not fit into memory.
        PackageError: If its files are damaged, or do not belong together.
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
    _check(package, draft, acceptance, block_attention=block_attention)
    choices: dict[str, Any] = {}
    if prefixes is not None and task.role == "decoder" and "encoder" not in task.parts:
        choices = {"prefixes": prefixes}
    elif prefixes is not None and (prefixes.answers is True or prefixes.folder):
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}, in which no prompt is kept; expected one for "
            f"{TEXT_GENERATION}. Leave prefix_cache_answers and prefix_cache_dir out."
        )
    if task.reads in ("image", "video"):
        named = package.manifest["spec"]["recipe"].get("image_processor")
        choices = {"image_processor": named}
    target = targets.find(package.target)
    with _fitting(package), sharing_tokenizers():
        # The tokenizer first: the graph reuses what its parser has freed, so that their peaks do not add up.
        Tokenizer.find(package.path)
        beside = {part.role for part in task.beside}
        answering, *before = (program for program in package.programs if program.role not in beside)
        opens = opening or partial(target.open, package)
        options = OpenOptions(threads=threads, smoke_test=smoke_test)
        opened = opens(answering.role, replace(options, routing=observe is not None))
        observed = Observed(opened, observe) if observe else opened
        choices |= {program.role: opens(program.role, options) for program in before}
        others = {program.role for program in package.programs} & beside - {*ROLES}
        choices |= {role: partial(opens, role, options) for role in others}  # opened on demand
        if task.before and task.role == "decoder":
            settings = package.manifest["spec"]["task"]
            choices["chosen"] = {**settings, VISION_SIZE: answering.vision_size}
        session: Session = task.session()(package.path, observed, **choices)
    hold(package.path / MANIFEST_NAME, session)
    if block_attention:
        assert isinstance(session, TextGenerationSession)
        session.allow_documents()
    if draft is not None:
        assert isinstance(session, TextGenerationSession)
        drafts = _open_drafts(package, draft, threads, session.decoder)
        session.speculation = speculation_of(session, drafts, acceptance)
    return session


def _check(
    package: Package, draft: Package | Own | None, acceptance: Acceptance, *, block_attention: bool
) -> None:
    """Reject options that contradict one another, or are not supported by the task of a package."""
    if block_attention and package.task != TEXT_GENERATION:
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}, which has no block attention; expected "
            f"one for {TEXT_GENERATION}. Leave block_attention out."
        )
    if draft is None and acceptance != EXACT:
        raise GenerationError(
            f"Acceptance {acceptance!r} says which drafted tokens count, and nothing is drafted. Expected the package "
            "of a smaller model that drafts. Give its package as draft, or leave acceptance out."
        )
    session = find(package.task).session()
    if draft is not None and not issubclass(session, TextGenerationSession):
        raise GenerationError(
            f"Package {str(package.path)!r} is for task {package.task!r}, in which no token is drafted; "
            f"expected one for {TEXT_GENERATION} or {IMAGE_TEXT_TO_TEXT}. Leave speculation out."
        )


def _open_drafts(
    package: Package, draft: Package | Own, threads: int | None, decoder: Decoder
) -> TextGenerationSession | Program | Own:
    if draft == LOOKUP:
        return draft
    if isinstance(draft, Package):
        return _open_draft(draft, threads)
    heads = open_heads(package, threads, decoder)
    if heads is None:
        raise GenerationError(
            f"Package {str(package.path)!r} has no heads that draft; expected one that was built with --draft-heads. "
            "Build it so, or draft with 'lookup' or the package of a smaller model."
        )
    return heads


def open_heads(
    package: Package,
    threads: int | None = None,
    decoder: Decoder | None = None,
    opening: Opening | None = None,
) -> Program | None:
    """Return the draft program of a package, opened; None for a package without one.

    Args:
        package: Opened package.
        threads: Number of CPU threads; None for all.
        decoder: Decoder of the session; its program is returned if it computes the heads itself.
        opening: A function that opens programs, as for `open_session`.
    """
    if decoder and decoder.heads:
        return decoder.program
    role = next((program.role for program in package.programs if program.role in ROLES), None)
    opens = opening or partial(targets.find(package.target).open, package)
    return role and opens(role, OpenOptions(threads=threads))


def _open_draft(package: Package, threads: int | None) -> TextGenerationSession:
    session = open_session(package, threads=threads, prefixes=PrefixCacheOptions(bytes=0))
    if isinstance(session, TextGenerationSession):
        return session
    raise GenerationError(
        f"The draft package {str(package.path)!r} is for task {package.task!r}; expected one for {TEXT_GENERATION}, of "
        "a smaller model of the same family. Draft with one, or with 'lookup'."
    )


@contextmanager
def _fitting(package: Package) -> Iterator[None]:
    """Raise `PackageError` for any mismatch between graph, configuration and manifest."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise PackageError(
            f"Package {str(package.path)!r} cannot be opened: its files do not fit its manifest, or each other "
            f"({type(error).__name__}: {error}). Expected those of one build. Build or pull it again."
        ) from error
