# SPDX-License-Identifier: Apache-2.0
"""What a package is and whether it is right: `validate` and `inspect`."""

import argparse

from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inputs import read_text, usable_package
from qeff_zoo.cli.printing import print_json
from qeff_zoo.errors import GenerationError


def validate_command(arguments: argparse.Namespace) -> int:
    """Compare a package with Hugging Face; 1 if they disagree."""
    if arguments.perplexity is not None:
        return _perplexity(arguments)
    if useless := [name for name in ("window", "stride", "graph") if getattr(arguments, name)]:
        raise GenerationError(
            f"--{useless[0]} applies to --perplexity only; expected --perplexity FILE as well. Add that, or leave "
            "it out."
        )
    from qeff_zoo.package.description import evidence
    from qeff_zoo.validation import checks

    outcome = checks.check(
        arguments.package,
        checkpoint=arguments.checkpoint,
        adapters=arguments.adapter,
        target=arguments.target,
        record=arguments.record,
        reporter=reporter(arguments),
    )
    if arguments.json:
        print_json(outcome.as_dict())
    else:
        print(
            f"{outcome.subject}: {'agrees' if outcome.passed else 'DISAGREES'} with Hugging Face ({outcome.level})"
        )
        print(evidence(outcome.checks))
        for one in outcome.reported:
            if "refused" in one:
                print(f"{one['model']}: {one['refused']}")
        if outcome.recorded:
            print(f"\nRecorded in {outcome.recorded}")
    return 0 if outcome.passed else 1


def _perplexity(arguments: argparse.Namespace) -> int:
    from qeff_zoo.validation import perplexity

    if arguments.record:
        raise GenerationError(
            "--record does not apply to --perplexity, which is not evidence about a package. Leave it out."
        )
    text = read_text(arguments.perplexity)
    package = usable_package(arguments.package)
    scoring = perplexity.prepare(
        package,
        text,
        window=arguments.window,
        stride=arguments.stride,
        batch_size=arguments.batch_size,
    )
    found = perplexity.compare(
        {"package": package},
        scoring,
        checkpoint=arguments.checkpoint,
        adapters=arguments.adapter,
        graph=arguments.graph,
        reporter=reporter(arguments),
    )
    if arguments.json:
        print_json(found.as_dict())
    else:
        print(found)
    return 0


def inspect_command(arguments: argparse.Namespace) -> int:
    """Explain a package; 1 if a file is not what it was."""
    from qeff_zoo.api import find_package
    from qeff_zoo.package.description import describe

    package = find_package(arguments.package)
    problems = package.verify() if arguments.verify else []
    if arguments.json:
        verified = {"intact": not problems, "problems": problems} if arguments.verify else {}
        print_json({"path": str(package.path), "manifest": package.manifest, **verified})
    else:
        print(describe(package), end="")
        if arguments.verify:
            print(
                "\nEvery file is what the manifest says."
                if not problems
                else "\n" + "\n".join(problems)
            )
    return 1 if problems else 0
