# SPDX-License-Identifier: Apache-2.0
"""`qeff-zoo serve`, with the scripted program of the tests in place of a package's: arguments of `serve` in."""

import sys

import scripted_program

from qeff_zoo import cli, runtime
from qeff_zoo.package import Package

_open_session = runtime.open_session


def _scripted(package: Package, **options: object) -> runtime.Session:
    return _open_session(package, opening=scripted_program.opening(package), **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    runtime.open_session = _scripted
    sys.exit(cli.main(["serve", *sys.argv[1:]]))
