# SPDX-License-Identifier: Apache-2.0
"""`qeff-zoo serve`, with the scripted program of the tests in place of a package's: arguments of `serve` in."""

import sys

import scripted_program

from qeff_zoo import cli, sessions
from qeff_zoo.package import Package

_open_session = sessions.open_session


#: Lengths for the system prompts of coding agents, in tokens of a small vocabulary.
_LENGTHS = {"ctx_len": 1 << 18, "prefill_seq_len": 1024}


def _scripted(package: Package, **options: object) -> sessions.Session:
    opening = scripted_program.opening(package, **_LENGTHS)
    return _open_session(package, opening=opening, **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    sessions.open_session = _scripted
    sys.exit(cli.main(["serve", *sys.argv[1:]]))
