# SPDX-License-Identifier: Apache-2.0
"""Errors of huggingface_hub in our terms: the failure, and advice.

Input: one of its errors. Output: a `CheckpointError` chained to it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from qeff_zoo.disk.user_paths import similar_path
from qeff_zoo.errors import CheckpointError
from qeff_zoo.settings import offline

#: Statuses after which the same request may succeed later.
LATER = (408, 425, 429, 500, 502, 503, 504)


def http_error() -> type[Exception]:
    """Return the base class of errors that a request can raise: httpx's or httpx2's, by version."""
    from huggingface_hub import errors

    return errors.HTTPError  # type: ignore[attr-defined]  # imported there, and not declared


def is_refusal(error: Exception) -> bool:
    """Whether the Hub responded with a refusal; if not, the cache may help.

    Args:
        error: Exception of huggingface_hub.
    """
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in LATER


def is_absent(error: Exception) -> bool:
    """Whether a server does not know an address: status 404, 405 or 501.

    Args:
        error: HTTP error of huggingface_hub.
    """
    return _status(error) in (404, 405, 501)


@contextmanager
def hub_errors(model_id: str, revision: str | None) -> Iterator[None]:
    """Translate errors of huggingface_hub.

    Args:
        model_id: `org/name`.
        revision: Requested revision.

    Raises:
        CheckpointError: An error of huggingface_hub occurred, which is its cause.
    """
    from huggingface_hub import errors

    try:
        yield
    except (
        http_error(),
        errors.HFValidationError,
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        errors.XetDownloadError,
        OSError,
    ) as error:
        raise CheckpointError(_explanation(error, model_id, revision)) from error


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException | None) -> str:
    """Return the text of the connection's error behind an error, after a space and in brackets; empty without one."""
    while error is not None and not isinstance(error, http_error()):
        error = error.__cause__ or error.__context__
    return f" ({error})" if error is not None and str(error) else ""


def _explanation(error: Exception, model_id: str, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{model_id!r} is gated: {endpoint} asks for its terms to be accepted. Expected a "
            f"token that has access. Accept them at {endpoint}/{model_id}, then run `hf auth "
            "login` or set HF_TOKEN."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"No revision {revision!r} in {model_id!r}. Expected a branch, a tag or a commit. "
            f"See {endpoint}/{model_id}/refs for those it has."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"No model {model_id!r} at {endpoint}, and no such folder here. Expected a public "
            f"model, or a token for a private one.{similar_path(model_id)} Check the spelling; for a private "
            "model run `hf auth login` or set HF_TOKEN."
        )
    if isinstance(error, errors.HFValidationError):
        return (
            f"{model_id!r} is not a model id: {error} Expected 'org/name' or a "
            f"folder.{similar_path(model_id)} Check the spelling."
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        away = offline() or isinstance(error.__cause__ or error, errors.OfflineModeIsEnabled)
        why = "QEFF_ZOO_OFFLINE or HF_HUB_OFFLINE is set"
        if not away:
            why = f"{endpoint} was not reached{_reason(error)}"
        return (
            f"{model_id!r} at revision {revision or 'main'!r} is not in the cache "
            f"{constants.HF_HUB_CACHE!r}, there is no such folder here, and {why}. Expected a folder, a "
            f"downloaded model, or a connection.{similar_path(model_id)} Check the spelling, or connect once."
        )
    if (status := _status(error)) in (401, 403):
        return (
            f"{endpoint} refused {model_id!r} with status {status}: {error}. Expected a valid "
            "token with access. Run `hf auth login`, or correct or unset HF_TOKEN."
        )
    return (
        f"Reading {model_id!r} from {endpoint} failed: {error}. Expected the files of revision "
        f"{revision or 'main'!r}. Run the command again; files that arrived whole are kept."
    )
