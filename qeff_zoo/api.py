# SPDX-License-Identifier: Apache-2.0
"""The Python API: `build`, `quantize`, `pull`, `load`, `find_package`. Light; the work imports what it needs."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from qeff_zoo.disk.user_paths import is_path, similar_path
from qeff_zoo.errors import PackageError, did_you_mean
from qeff_zoo.package import Package
from qeff_zoo.store import Store

if TYPE_CHECKING:
    from qeff_zoo.quantizer.options import Quantized
    from qeff_zoo.runtime.engine.speculation import Acceptance
    from qeff_zoo.sessions import Session


def build(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    config_from: str | os.PathLike[str] | None = None,
    gguf_file: str | None = None,
    validate: bool = True,
    output: str | os.PathLike[str] | None = None,
    **choices: Any,
) -> Package:
    """Build a validated package, or find it in the store.

    Args:
        model: Hub id (`org/name`) or folder of a checkpoint, or a GGUF file.
        revision: Branch, tag or commit of a Hub model.
        config_from: Original checkpoint of a GGUF file, which provides configuration and tokenizer.
        gguf_file: Name of a GGUF file in the folder or Hub repository.
        validate: Whether to compare the package with the Hugging Face model, and discard it if they disagree.
        output: Folder for a copy of the package, besides the one in the store.
        **choices: Options of `qeff-zoo build`, with `_` for `-`, such as `ctx_len=4096`. Options of several values,
            such as `seq_lens`, `format` and `adapter`, accept a single value, too.

    Returns:
        The package; `path` is its folder.

    Raises:
        ZooError: If the model is unsupported, options conflict, or the machine lacks something. The message contains
            what to do.

    Example:
        >>> package = qeff_zoo.build(
        ...     "examples/tiny-llama", weights="int4", ctx_len=512
        ... )  # doctest: +SKIP
        >>> print(package.path)  # doctest: +SKIP
    """
    from qeff_zoo import pipeline
    from qeff_zoo.plan.request import OPTIONS, Request

    destination = None if output is None else Path(output)
    for name in OPTIONS.keys() & choices.keys():
        several = get_origin(OPTIONS[name].kind) is tuple
        if several and isinstance(choices[name], str | os.PathLike | int):
            choices[name] = (choices[name],)
    if choices.get("adapter") is not None:
        choices["adapter"] = tuple(map(os.fspath, choices["adapter"]))
    if choices.get("draft_heads") is not None:
        choices["draft_heads"] = os.fspath(choices["draft_heads"])
    request = Request(**choices)
    built = pipeline.build(
        os.fspath(model),
        request,
        revision=revision,
        config_from=None if config_from is None else os.fspath(config_from),
        gguf_file=gguf_file,
        validate=validate,
        output=destination,
    )
    return built.package


def quantize(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    calibration: str | None = None,
    revision: str | None = None,
    **options: Any,
) -> "Quantized":
    """Quantize a checkpoint with calibration data, and write it in the format of compressed-tensors.

    Args:
        model: Hub id (`org/name`) or folder of a checkpoint with float weights.
        output: New or empty folder.
        calibration: Calibration text of the model's kind; None for a few built-in texts.
        revision: Branch, tag or commit of a Hub model.
        **options: Options of `qeff-zoo quantize`: `bits`, `group_size`, `budget`, `method`, …

    Returns:
        The quantized checkpoint; `path` is its folder.

    Raises:
        ZooError: If the model is unsupported, options conflict, or the machine lacks something. The message contains
            what to do.

    Example:
        >>> quantized = qeff_zoo.quantize("org/model", "model-int4", budget=4.8)  # doctest: +SKIP
        >>> qeff_zoo.build(quantized.path)  # doctest: +SKIP
    """
    from qeff_zoo.quantizer.options import QuantizeOptions
    from qeff_zoo.quantizer.quantize import quantize

    return quantize(
        os.fspath(model),
        Path(output),
        QuantizeOptions(**options),
        text=calibration,
        revision=revision,
    )


def pull(
    model: str,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    key: str | None = None,
    remote: str | None = None,
    output: str | os.PathLike[str] | None = None,
    **choices: Any,
) -> Package:
    """Download a shared package, and verify every byte; or find it in the store.

    Args:
        model: Hub id (`org/name`), Hub repository of packages (`org/repo[@revision]`), or URL of a remote.
        revision: Revision of the source checkpoint.
        gguf_file: Source file in a Hub repository of GGUF files.
        key: Name of one package: its key (8 hex digits or more), its variant, or both.
        remote: Remote to search, a URL or `org/repo` of the Hub; None for those of the settings.
        output: Folder for a copy of the package, besides the one in the store.
        **choices: Required options, see `build`.

    Returns:
        The package; `path` is its folder.

    Raises:
        ZooError: If no package matches, or it cannot be downloaded, or is not trusted. The message contains what to do.

    Example:
        >>> package = qeff_zoo.pull("org/model", ctx_len=4096)  # doctest: +SKIP
        >>> print(package.path)  # doctest: +SKIP
    """
    from qeff_zoo.hub import pull
    from qeff_zoo.store.copies import copy_out

    pulled = pull.pull(
        model, choices, key=key, remote=remote, revision=revision, gguf_file=gguf_file
    )
    for text in pulled.warnings:
        warnings.warn(f"{pulled.package.name}: {text}", stacklevel=2)
    return pulled.package if output is None else copy_out(pulled.package, Path(output))


def load(
    package: Package | str | os.PathLike[str],
    *,
    threads: int | None = None,
    prefix_cache_bytes: int | None = None,
    prefix_cache_answers: bool | None = None,
    prefix_cache_dir: str | os.PathLike[str] | None = None,
    draft: Package | str | os.PathLike[str] | None = None,
    acceptance: "Acceptance" = "exact",
    block_attention: bool = False,
) -> "Session":
    """Open a package for running. A package that the store lacks is pulled first.

    Args:
        package: A package, its folder, its model, its key (8 hex digits or more), its variant, or variant and key. For
            a package that the store lacks, also a Hub repository of packages, or the URL of a remote.
        threads: CPU threads; None for one per physical core.
        prefix_cache_bytes: Memory of the prefix cache (text generation); 0 for none, None for 128 MiB.
        prefix_cache_answers: Whether generated tokens are cached too, for the next turn of a chat. Logits of that turn
            may differ in their last digits. None for yes if the package computes in float32, where the difference is
            small.
        prefix_cache_dir: Folder of the prefix cache for later sessions. Its readers can reconstruct prompts.
        draft: Draft for speculative decoding (text generation): a package of a smaller model with the same
            vocabulary, named like `package`; "lookup" for prompt lookup; or "heads" for the package's own draft heads
            (`build(draft_heads=…)`). Packages without draft heads require `build(num_speculative_tokens=…)`.
        acceptance: Rule for drafted tokens of a draft model in sampled requests: "exact", by which a seed gives the
            same output as without speculation, or "rejection", which accepts more of them and keeps the distribution.
        block_attention: Whether requests may have documents that are encoded once, independently of each other (block
            attention, arXiv 2409.15355; text generation).

    Returns:
        A session: `generate(prompts, generation_len=…)` for text generation, `embed(texts)` for embeddings,
        `classify(texts)` for labels of texts, of pairs of texts, or of tokens.

    Example:
        >>> session = qeff_zoo.load("org/model")  # doctest: +SKIP
        >>> session.generate(["def main"], generation_len=16)[0].text  # doctest: +SKIP
    """
    from qeff_zoo.runtime import PrefixCacheOptions
    from qeff_zoo.runtime.engine.speculation import OWN
    from qeff_zoo.sessions import open_session

    folder = None if prefix_cache_dir is None else Path(prefix_cache_dir)
    prefixes = PrefixCacheOptions(
        bytes=prefix_cache_bytes, answers=prefix_cache_answers, folder=folder
    )
    drafts: Any = draft
    if drafts not in (None, *OWN):
        drafts = _usable(drafts)
    return open_session(
        _usable(package),
        threads=threads,
        prefixes=prefixes,
        draft=drafts,
        acceptance=acceptance,
        block_attention=block_attention,
    )


def _usable(package: Package | str | os.PathLike[str]) -> Package:
    if not isinstance(package, Package):
        return find_usable(os.fspath(package))
    _require_usable(package)
    return package


def find_package(reference: str) -> Package:
    """Open a package by its folder, or find it in the store by its model, its key, its variant, or variant and key.

    Raises:
        PackageError: If there is no such package, or several, or it is damaged.
    """
    if local := find_here(reference):
        return local
    pulling = f"`qeff-zoo pull {reference}` or " if _is_elsewhere(reference) else ""
    store = Store()
    ours = [package.name for package in _packages(store) if store.is_built_here(package.build_key)]
    near = similar_path(reference) if is_path(reference) else ""
    near = near or did_you_mean(reference, {*ours, *(Path(our).name for our in ours)})
    raise PackageError(
        f"No package at {reference!r}: neither a folder nor a key or model name in the store.{near} Run `qeff-zoo "
        f"cache ls` to see what is there, or {pulling}`qeff-zoo build MODEL` to have one."
    )


def find_usable(reference: str, announce: Callable[[str], None] = lambda _: None) -> Package:
    """Find a package to be run or measured as `find_package` does, or pull it where the store has none.

    Progress of a pull is shown on stderr to a person.

    Args:
        reference: Argument of `find_package`, or of `pull`.
        announce: Callback for a line that names what is pulled from where.

    Raises:
        PackageError: There is no such package, or several; or it is damaged.
        TrustError: The package was built elsewhere, and the trust policy refuses it.
        ZooError: The package cannot be pulled.
    """
    package = find_here(reference)
    if package is None and _is_elsewhere(reference):
        package = _pull(reference, announce)
    package = package or find_package(reference)  # which says what was looked for
    _require_usable(package)
    return package


def _is_elsewhere(reference: str) -> bool:
    """Whether a reference can name something that needs a pull."""
    from qeff_zoo.hub.remotes import is_repository, is_url

    return is_repository(reference) or is_url(reference)


def _pull(reference: str, announce: Callable[[str], None]) -> Package:
    from qeff_zoo.hub import pull
    from qeff_zoo.terminal.progress_bars import reporter

    pulled = pull.pull(reference, puller=pull.Puller(Store(), reporter(), announce))
    for text in pulled.warnings:
        warnings.warn(f"{pulled.package.name}: {text}", stacklevel=4)
    return pulled.package


def _require_usable(package: Package) -> None:
    from qeff_zoo.hub.trust.usage import require_usable

    for text in require_usable(package, Store()):
        warnings.warn(f"{package.name}: {text}", stacklevel=3)


def find_here(reference: str) -> Package | None:
    """Find a package as `find_package` does; None if there is none.

    Raises:
        PackageError: There are several, or it is damaged.
    """
    if reference and os.path.exists(reference):  # noqa: PTH110 -- a name too long for a file is none
        return Package.open(reference)
    from qeff_zoo.hub.entries import package_path
    from qeff_zoo.hub.naming import ambiguity, full_name, is_called

    store = Store()
    matching = [found for found in _packages(store) if is_called(reference, found.manifest)]
    # What others made, under whatever name, never stands in the way of what was built here.
    matching = [one for one in matching if store.is_built_here(one.build_key)] or matching
    if len(matching) > 1:
        names = (full_name(one.name, package_path(one.manifest)) for one in matching)
        raise PackageError(ambiguity(reference, names))
    return matching[0] if matching else None


def _packages(store: Store) -> list[Package]:
    """Return the complete packages of the store."""
    entries = [
        entry for entry in store.entries() if (entry.kind, entry.state) == ("package", "complete")
    ]
    return [Package.open(entry.path) for entry in entries]
