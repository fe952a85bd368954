# SPDX-License-Identifier: Apache-2.0
"""A package where others find it: `publish`."""

import argparse
import sys

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.printing import print_json


def publish_command(arguments: argparse.Namespace) -> None:
    """Publish a package and print where the commit can be seen; or print the plan."""
    from qeff_zoo.api import find_package
    from qeff_zoo.hub.publish import publish
    from qeff_zoo.hub.publish.plan import plan_publication

    bars = reporter(arguments)
    plan = plan_publication(
        find_package(arguments.package),
        arguments.remote,
        private=arguments.private,
        create_pr=arguments.create_pr,
        reporter=bars,
    )
    if arguments.dry_run:
        print_json(plan.as_dict()) if arguments.json else print(plan)
        return
    print(plan.summary, file=sys.stderr)
    url = publish(plan, reporter=bars)
    if arguments.json:
        print_json({**plan.as_dict(), "url": url})
    else:
        print(url)
