# SPDX-License-Identifier: Apache-2.0
"""The `site` command: recipes, records and remotes as a static web site."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.options import add_offline, command
from qeff_zoo.errors import PublishError
from qeff_zoo.terminal.printing import print_json


def site_command(arguments: argparse.Namespace) -> None:
    """Write a site and print its folder; with --serve, serve it until an interrupt."""
    from qeff_zoo.site import folder
    from qeff_zoo.site.preview import serve

    if arguments.output is None and not arguments.serve:
        raise PublishError(
            "`qeff-zoo site` has no folder to write to. Expected --output DIR, or --serve to look at the site on this "
            "machine. Give one of them."
        )
    if arguments.output is not None:
        folder.require_free(arguments.output)
    with tempfile.TemporaryDirectory(prefix="qeff-zoo-site-") as scratch:
        output = arguments.output or Path(scratch, "site")
        facts = _write(arguments, output)
        if arguments.json:
            print_json(facts)
        elif arguments.output is not None:
            print(output)
        if arguments.serve:
            try:
                serve(output, arguments.port, lambda url: print(url, file=sys.stderr, flush=True))
            except KeyboardInterrupt:
                return


def _write(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    from qeff_zoo.site import folder
    from qeff_zoo.site.gather import gather
    from qeff_zoo.terminal.progress import Stopwatch

    watch = Stopwatch(reporter(arguments))
    with watch.stage("read packages", unit="package") as advance:
        zoo = gather(
            arguments.remotes,
            arguments.records,
            reports=arguments.report,
            title=arguments.title,
            offline=arguments.offline,
            progress=advance,
        )
    with watch.stage("write"):
        folder.write(zoo, place)
    packages = sum(len(model.variants) for model in zoo.models)
    return {
        "path": str(place),
        "models": len(zoo.models),
        "architectures": len(zoo.architectures),
        "packages": packages,
    }


# --- arguments ----------------------------------------------------------------------------------


def _add_site(commands: Any) -> None:
    text = "write a static web site of models, packages and their validation"
    parser = command(commands, "site", text)
    parser.add_argument(
        "remotes",
        nargs="*",
        metavar="REMOTE",
        help="remotes whose packages are shown: URLs, or org/repo of the Hub (default: none)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the site; an earlier site is replaced",
    )
    parser.add_argument(
        "--serve", action="store_true", help="serve the site on this machine, to look at it"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        metavar="N",
        help="port of --serve; 0 for any free one (default: 8000)",
    )
    parser.add_argument(
        "--records",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of records that `validate --record` wrote, shown besides those of qeff-zoo; repeatable",
    )
    parser.add_argument(
        "--report",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="report that `farm run --json` printed, whose failed packages are shown as red; repeatable",
    )
    parser.add_argument(
        "--title", default="Model zoo", help='title of the site (default: "Model zoo")'
    )
    add_offline(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = ((_add_site, {"site": site_command}),)
