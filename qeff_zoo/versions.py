# SPDX-License-Identifier: Apache-2.0
"""Versions of what is installed, the same on every machine."""


def version(name: str) -> str:
    """Return the version of an installed Python package.

    Raises:
        PackageNotFoundError: There is none.
    """
    from importlib import metadata  # slow to import

    return metadata.version(name)


def installed(name: str) -> str | None:
    """Return the version of an installed Python package without its local part (`+cpu`); None if there is none."""
    from importlib.metadata import PackageNotFoundError

    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None
