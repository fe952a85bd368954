# SPDX-License-Identifier: Apache-2.0
"""From a model to a package: `plan`, `build` and `export`."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.printing import print_json, table
from qeff_zoo.cli.reading import choices_of
from qeff_zoo.cli.signing import signer

if TYPE_CHECKING:
    from qeff_zoo.progress import Reporter


def _request(arguments: argparse.Namespace) -> Any:
    from qeff_zoo.choices import Request

    return Request(**choices_of(arguments))


def plan_command(arguments: argparse.Namespace) -> None:
    """Print every choice of a build and who made it."""
    from qeff_zoo.pipeline import make_plan

    _, plan = make_plan(arguments.model, _request(arguments), revision=arguments.revision)
    if arguments.json:
        print_json({"build_key": plan.build_key, "fields": plan.explained(), "spec": plan.spec})
        return
    rows = [[name, field["value"], field["by"]] for name, field in plan.explained().items()]
    print(table(rows, ["field", "value", "set by"]))
    print(f"\nbuild_key  {plan.build_key}")


def build_command(arguments: argparse.Namespace) -> None:
    """Build a package and print its path; publish it, if asked to."""
    from qeff_zoo import pipeline

    _check_publication(arguments)
    built = pipeline.build(
        arguments.model,
        _request(arguments),
        revision=arguments.revision,
        validate=not arguments.no_validate,
        output=arguments.output,
        reporter=reporter(arguments),
    )
    package = built.package
    took = sum(built.seconds.values())
    state = "was in the store already" if built.hit else f"built, validated: {package.validated}"
    if not arguments.json:
        print(f"{package.name}: {state} ({took:.1f} s)", file=sys.stderr)
    published = _published(package, arguments)
    if arguments.json:
        answer = {"path": str(package.path), "build_key": package.build_key, "hit": built.hit}
        answer |= {"seconds": built.seconds, "peak_rss_bytes": built.peak_rss_bytes}
        print_json({**answer, **published})
        return
    print(package.path)


def _check_publication(arguments: argparse.Namespace) -> None:
    """Refuse before the build what could not be published after it."""
    from qeff_zoo.errors import PublishError

    if arguments.publish is None:
        if arguments.private:
            raise PublishError(
                "--private applies to publishing only; expected --publish REMOTE beside it. Leave it out."
            )
        return
    from qeff_zoo.hub.publish.plan import check_destination

    if arguments.no_validate:
        raise PublishError(
            "--publish and --no-validate exclude each other: what was not compared with Hugging Face is not published. "
            "Expected one of them. Leave one out."
        )
    check_destination(arguments.publish, private=arguments.private)


def _published(package: Any, arguments: argparse.Namespace) -> dict[str, str]:
    if arguments.publish is None:
        return {}
    from qeff_zoo.hub.publish import publish
    from qeff_zoo.hub.publish.plan import plan_publication

    bars = reporter(arguments)
    plan = plan_publication(package, arguments.publish, private=arguments.private, reporter=bars)
    print(plan.summary, file=sys.stderr)
    url = publish(plan, reporter=bars, sign=signer(arguments))
    print(f"published: {url}", file=sys.stderr)
    return {"published": url}


def export_command(arguments: argparse.Namespace) -> None:
    """Export a portable graph and print its path."""
    from qeff_zoo import pipeline

    exported = pipeline.export(
        arguments.model,
        arguments.output,
        request=_request(arguments),
        revision=arguments.revision,
        graph_only=arguments.graph_only,
        reporter=reporter(arguments),
    )
    if arguments.json:
        print_json(
            {
                "path": str(exported.path),
                "seconds": exported.seconds,
                "peak_rss_bytes": exported.peak_rss_bytes,
            }
        )
        return
    print(exported.path)


def reporter(arguments: argparse.Namespace) -> "Reporter":
    """Show progress bars to a person, and nothing to a pipe."""
    from qeff_zoo import bars

    return bars.reporter(quiet=arguments.quiet)
