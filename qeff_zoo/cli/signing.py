# SPDX-License-Identifier: Apache-2.0
"""Who vouches for a package: `sign`."""

import argparse

from qeff_zoo.cli.printing import print_json


def sign_command(arguments: argparse.Namespace) -> None:
    """Sign a package's manifest; print the signature's path."""
    from qeff_zoo.api import find_package
    from qeff_zoo.hub import trust

    path = trust.sign(find_package(arguments.package), key=arguments.key)
    if arguments.json:
        print_json({"signature": str(path)})
    else:
        print(path)
