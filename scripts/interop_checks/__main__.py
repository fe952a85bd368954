# SPDX-License-Identifier: Apache-2.0
"""`scripts/interop`: check the server with others' clients and tests, and record what came of it."""

import argparse
import json
import os
import sys
from pathlib import Path

from interop_checks import clients, evaluation, forms, templates
from interop_checks.reasons import FAILS
from interop_checks.suites import SUITES
from interop_checks.table import RECORD, merged, shown, summary

CHECKS = {
    "clients": clients.run,
    **{name: suite.run for name, suite in SUITES.items()},
    "templates": templates.run,
    "lm-eval": evaluation.run,
    "forms": forms.run,
    "schemas": forms.schemas,
}


def main() -> int:
    """Run the selected checks; 1 if a check has a failure without a reason."""
    parser = argparse.ArgumentParser(prog="scripts/interop", description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], metavar="CHECK", default=[])
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="names of flows with one of these texts, which replace their rows in the record, or files of tests",
    )
    parser.add_argument("--cache", type=Path, default=Path(sys.prefix) / "interop", metavar="DIR")
    asked = parser.parse_args()
    if unknown := {*asked.checks} - {*CHECKS}:
        parser.error(f"no check {', '.join(unknown)}; expected some of {', '.join(CHECKS)}")
    cache = asked.cache.absolute()
    os.environ.setdefault("QEFF_HOME", str(cache / "store"))
    failed = False
    for name in asked.checks or CHECKS:
        rows = CHECKS[name](cache, asked.only)
        print(shown(name, rows))
        failed |= any(row["result"] == FAILS for row in rows)
        known = json.loads(RECORD.read_bytes()) if RECORD.exists() else {}
        found = summary(name, rows)
        if asked.only and name == "clients":
            found = merged(known.get(name, []), found)
        is_whole = not asked.only or (name in SUITES and SUITES[name].whole(cache).exists())
        if is_whole or name == "clients":
            RECORD.write_text(json.dumps({**known, name: found}, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
