# SPDX-License-Identifier: Apache-2.0
"""Calls to the Hub's API: repeated when the network fails, their errors in our words.

In: a call of huggingface_hub. Out: what it returns, or a `RemoteError`.
"""

from collections.abc import Callable
from typing import TypeVar

from qeff_zoo.checkpoint.hub_errors import http_error
from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.retries import retried
from qeff_zoo.hub.transport import LATER
from qeff_zoo.settings import offline

_Result = TypeVar("_Result")


def hub_call(what: str, call: Callable[[], _Result]) -> _Result:
    """Call the Hub's API until it answers, a limited number of times.

    Args:
        what: What the call does, for the message: "create 'acme/zoo'".
        call: Of huggingface_hub; it must be safe to make twice.

    Raises:
        RemoteError: The Hub refused it, or was not reached.
    """
    return retried(lambda: _once(what, call))


def _once(what: str, call: Callable[[], _Result]) -> _Result:
    if offline():
        raise RemoteError(
            f"Cannot {what}: QEFF_ZOO_OFFLINE or HF_HUB_OFFLINE is set. Expected a connection. Unset it."
        )
    from huggingface_hub import errors

    try:
        return call()
    except (http_error(), errors.HFValidationError, OSError) as error:
        raise _refused(what, error) from error


def status_of(error: BaseException | None) -> int | None:
    """Find the HTTP status behind an error; uploads wrap theirs. None if there was no answer."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None:
            return int(status)
        error = error.__cause__
    return None


def is_passing(error: Exception) -> bool:
    """Say whether the same may succeed later."""
    status = status_of(error)
    if status is not None:
        return status in LATER
    return not isinstance(error, ValueError | FileNotFoundError | PermissionError)


def _refused(what: str, error: Exception) -> RemoteError:
    from huggingface_hub import constants, errors

    status = status_of(error)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    failed = f"Cannot {what} at {constants.ENDPOINT}: {lines[-1]}"
    if isinstance(error, errors.HFValidationError):
        return RemoteError(f"{failed} Expected a repository 'org/name'. Correct it.")
    if status in (401, 403, 404):
        advice = "Expected a token that may write there. Run `hf auth login` or set HF_TOKEN; check the name."
    elif is_passing(error):
        advice = "Expected an answer. Check the connection, then run the command again; what has arrived stays."
    else:
        advice = "Expected the Hub to accept it. Do what it says."
    said = "" if status is None else f" (status {status})"
    return RemoteError(f"{failed}{said}. {advice}", retryable=is_passing(error))
