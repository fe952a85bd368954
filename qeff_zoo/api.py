# SPDX-License-Identifier: Apache-2.0
"""The Python API: `build`, `pull`, `load`, `find_package`. Light to import; the work imports what it needs."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import PackageError
from qeff_zoo.identity import is_key
from qeff_zoo.package import Package
from qeff_zoo.store import Store

if TYPE_CHECKING:
    from qeff_zoo.runtime import Session


def build(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    validate: bool = True,
    output: str | os.PathLike[str] | None = None,
    **choices: Any,
) -> Package:
    """Build a validated package, or find it in the store.

    Args:
        model: Hub id (`org/name`) or folder of a checkpoint.
        revision: Branch, tag or commit of a Hub model.
        validate: Compare with Hugging Face before the package is kept.
        output: Also copy the package to this folder.
        **choices: Fields of `qeff_zoo.choices.Request`, which are the flags of `qeff-zoo build`.

    Raises:
        ZooError: The model, the choices or the machine stand in the way; the message says what to do.

    Example:
        >>> package = qeff_zoo.build(
        ...     "examples/tiny-llama", weights="int4", ctx_len=512
        ... )  # doctest: +SKIP
        >>> print(package.path)  # doctest: +SKIP
    """
    from qeff_zoo import pipeline
    from qeff_zoo.choices import Request

    destination = None if output is None else Path(output)
    request = Request(**choices)
    built = pipeline.build(
        os.fspath(model), request, revision=revision, validate=validate, output=destination
    )
    return built.package


def pull(
    model: str,
    *,
    revision: str | None = None,
    key: str | None = None,
    output: str | os.PathLike[str] | None = None,
    **choices: Any,
) -> Package:
    """Bring a shared package here, every byte checked, or find it in the store.

    Args:
        model: Hub id (`org/name`), Hub repository of packages (`org/repo[@revision]`), or URL of a remote.
        revision: Of the checkpoint that it was made from.
        key: Build key, or its beginning, of the one package that will do.
        output: Also copy the package to this folder.
        **choices: What it must be, as for `build`.

    Raises:
        ZooError: There is none, or it cannot be had, or is not trusted; the message says what to do.

    Example:
        >>> package = qeff_zoo.pull("org/model", ctx_len=4096)  # doctest: +SKIP
        >>> print(package.path)  # doctest: +SKIP
    """
    from qeff_zoo.hub import pulling
    from qeff_zoo.store.copies import copy_out

    pulled = pulling.pull(model, choices, revision=revision, key=key)
    for text in pulled.warnings:
        warnings.warn(f"{pulled.package.name}: {text}", stacklevel=2)
    return pulled.package if output is None else copy_out(pulled.package, Path(output))


def load(
    package: Package | str | os.PathLike[str],
    *,
    threads: int | None = None,
    prefix_cache_bytes: int | None = None,
) -> "Session":
    """Open a package for running; one that is not here is pulled first.

    Args:
        package: A package, its folder, its build key or a prefix of it, or the name of its model. If the store has
            none, what `pull` takes: a model id, a Hub repository of packages, or the URL of a remote.
        threads: CPU threads; None for one per physical core.
        prefix_cache_bytes: Of text generation, memory for prompts that begin alike; 0 for none, None for 128 MiB.

    Returns:
        A session: `generate(prompts, generation_len=…)` for text generation, `embed(texts)` for embeddings,
        `classify(texts)` for labels of texts, of pairs of texts, or of tokens.

    Example:
        >>> session = qeff_zoo.load("org/model")  # doctest: +SKIP
        >>> session.generate(["def main"], generation_len=16)[0].text  # doctest: +SKIP
    """
    from qeff_zoo.hub.remotes import is_repository, is_url
    from qeff_zoo.runtime import open_session

    if not isinstance(package, Package):
        reference = os.fspath(package)
        found = find_here(reference)
        if found is None and (is_repository(reference) or is_url(reference)):
            found = pull(reference)
        package = found or find_package(reference)  # which says what was looked for
    _require_usable(package)
    return open_session(package, threads=threads, prefix_cache_bytes=prefix_cache_bytes)


def find_package(reference: str) -> Package:
    """Open a package by its folder, or find one in the store by its build key, a prefix of it, or its model's name.

    Raises:
        PackageError: There is no such package, or several; or it is damaged.
    """
    if found := find_here(reference):
        return found
    raise PackageError(
        f"No package at {reference!r}: neither a folder nor a build key or model name in the store. Run "
        f"`qeff-zoo cache ls` to see what is there, or `qeff-zoo build MODEL` to make one."
    )


def find_usable(reference: str) -> Package:
    """Find a package as `find_package` does, to be run or measured.

    Raises:
        PackageError: There is no such package, or several; or it is damaged.
        TrustError: It was not built here, and the trust policy refuses it.
    """
    package = find_package(reference)
    _require_usable(package)
    return package


def _require_usable(package: Package) -> None:
    from qeff_zoo.hub.trust import require_usable

    for text in require_usable(package, Store()):
        warnings.warn(f"{package.name}: {text}", stacklevel=3)


def find_here(reference: str) -> Package | None:
    """Find a package as `find_package` does; None if there is none.

    Raises:
        PackageError: There are several, or it is damaged.
    """
    if reference and os.path.exists(reference):  # noqa: PTH110 -- a name too long for a file is none
        return Package.open(reference)
    entries = [
        entry for entry in Store().entries() if (entry.kind, entry.state) == ("package", "complete")
    ]
    packages = [Package.open(entry.path) for entry in entries]
    matching = [
        found for found in packages if is_key(reference, found.build_key) or found.name == reference
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = "\n".join(f"  {found.build_key}  {found.name}" for found in matching)
        raise PackageError(
            f"{reference!r} names {len(matching)} packages of the store. Expected one; give more of its key:\n{names}"
        )
    return None
