# SPDX-License-Identifier: Apache-2.0
"""The Python API: `build`, `load`, `find_package`. Light to import; the work imports what it needs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import PackageError
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
        **choices: Fields of `qeff_zoo.plan.Request`: target, task, profile, weights, block_size, prefill_seq_len,
            ctx_len, batch_size, full_batch_size, seq_lens, pooling, normalize, expanded_kv.

    Raises:
        ZooError: The model, the choices or the machine stand in the way; the message says what to do.

    Example:
        >>> package = qeff_zoo.build(
        ...     "examples/tiny-llama", weights="int4", ctx_len=512
        ... )  # doctest: +SKIP
        >>> print(package.path)  # doctest: +SKIP
    """
    from qeff_zoo import pipeline
    from qeff_zoo.plan import Request

    destination = None if output is None else Path(output)
    request = Request(**choices)
    built = pipeline.build(
        os.fspath(model), request, revision=revision, validate=validate, output=destination
    )
    return built.package


def load(
    package: Package | str | os.PathLike[str],
    *,
    threads: int | None = None,
    prefix_cache_bytes: int | None = None,
) -> "Session":
    """Open a package for running.

    Args:
        package: A package, its folder, or its build key or a prefix of it.
        threads: CPU threads; None for one per physical core.
        prefix_cache_bytes: Of text generation, memory for prompts that begin alike; 0 for none, None for 128 MiB.

    Returns:
        A session: `generate(prompts, generation_len=…)` for text generation, `embed(texts)` for embeddings,
        `classify(texts)` for labels of texts, of pairs of texts, or of tokens.

    Example:
        >>> session = qeff_zoo.load("my-package")  # doctest: +SKIP
        >>> session.generate(["def main"], generation_len=16)[0].text  # doctest: +SKIP
    """
    from qeff_zoo.runtime import open_session

    found = package if isinstance(package, Package) else find_package(os.fspath(package))
    return open_session(found, threads=threads, prefix_cache_bytes=prefix_cache_bytes)


def find_package(reference: str) -> Package:
    """Open a package by its folder, or find one in the store by its build key, a prefix of it, or its model's name.

    Raises:
        PackageError: There is no such package, or several; or it is damaged.
    """
    if Path(reference).exists():
        return Package.open(reference)
    entries = [
        entry for entry in Store().entries() if (entry.kind, entry.state) == ("package", "complete")
    ]
    packages = [Package.open(entry.path) for entry in entries]
    matching = [
        found
        for found in packages
        if found.build_key.startswith(reference) or found.name == reference
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = "\n".join(f"  {found.build_key}  {found.name}" for found in matching)
        raise PackageError(
            f"{reference!r} names {len(matching)} packages of the store. Expected one; give more of its key:\n{names}"
        )
    raise PackageError(
        f"No package at {reference!r}: neither a folder nor a build key or model name in the store. Run "
        f"`qeff-zoo cache ls` to see what is there, or `qeff-zoo build MODEL` to make one."
    )
