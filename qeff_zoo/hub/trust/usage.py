# SPDX-License-Identifier: Apache-2.0
"""Check before every use of a package: whether the trust policy permits it.

In: a package, and the store with the record of its origin. Out: nothing, warnings, or a refusal. A package that was
built here is used. Any other one is checked against the current trust policy, and against the last known notices of its
remote, without a request.
"""

from dataclasses import replace

from qeff_zoo.errors import TrustError
from qeff_zoo.hub.entries import Notice, model_of
from qeff_zoo.hub.naming import notice_text
from qeff_zoo.hub.trust import check, policy_for, read_signed
from qeff_zoo.hub.trust.policy import REQUIRE
from qeff_zoo.hub.urls import unpinned
from qeff_zoo.package import Package
from qeff_zoo.store import Store
from qeff_zoo.store.origins import BuiltHere, Origin, Provenance, read_origin

from . import index_cache


def require_usable(package: Package, store: Store) -> list[str]:
    """Check before it is used that a package was built here, or that policy and notices let it pass.

    Args:
        package: Package of the store, or of any folder.
        store: Local store.

    Returns:
        Warnings, a sentence each; of an unsigned one only if a signer is pinned.

    Raises:
        TrustError: The policy refuses it; its signature is not genuine; or it is known to be bad.
    """
    warnings = require_trusted(package, store)
    notice = known_notice(package, store)
    if notice is None:
        return warnings
    if notice.state == "known_bad":
        raise TrustError(
            f"{package.name!r} is {notice_text(notice)}. That is what the remote says that it was pulled from; "
            "expected a package that is right. Pull or build another one."
        )
    return [*warnings, f"It is {notice_text(notice)}."]


def require_trusted(package: Package, store: Store) -> list[str]:
    """Check that a package was built here, or that the policy lets it pass, whatever became known about it."""
    origin = _origin(package, store)
    if isinstance(origin, BuiltHere):
        return []
    return check(*read_signed(package.path), policy_for(origin))


def is_as_good_as_ours(package: Package, store: Store) -> bool:
    """Whether a package replaces a build, and is published as ours: built here, or signed by a pinned signer.

    A copy in another folder was built here if the store has a package that was, of the same files but for evidence.
    """
    ours = store.lookup(package.build_key) if store.is_built_here(package.build_key) else None
    if ours and _content(ours) == _content(package):
        return True
    origin = _origin(package, store)
    chosen = policy_for(origin)
    if not chosen.has_pins:
        return False
    try:
        check(*read_signed(package.path), replace(chosen, mode=REQUIRE))
        require_usable(package, store)
    except TrustError:
        return False
    return True


def _content(package: Package) -> dict[str, str]:
    """Return the digests of all files that a validation does not write."""
    files = package.manifest["files"]
    return {file["path"]: file["digest"] for file in files if file["role"] != "evidence"}


def _origin(package: Package, store: Store) -> Provenance | None:
    """Return the origin of a package; unknown for a copy outside the store, whatever note lies there."""
    if package.path != store.folder(package.build_key):
        return None
    return store.origin(package.build_key)


def known_notice(package: Package, store: Store) -> Notice | None:
    """Return the last notice of a package's remote; its own note counts only against it.

    Args:
        package: Package of the store, or of any folder.
        store: Local store.
    """
    origin = _origin(package, store) or read_origin(package.path)
    return notice_of(origin, model_of(package.manifest)) if isinstance(origin, Origin) else None


def notice_of(origin: Origin, model: str) -> Notice | None:
    """Return the cached notice of a package, without a request.

    Args:
        origin: Origin of the package.
        model: Model that its index lists it under.
    """
    notices = index_cache.last_notices(unpinned(origin.url), model)
    if notices is None:
        notices = index_cache.last_notices(origin.url, model) or {}
    return notices.get(origin.path)
