# SPDX-License-Identifier: Apache-2.0
"""`qeff-cloud-finetune`: not there yet; says what to do instead."""

import sys
from collections.abc import Sequence

from qeff_zoo.cli import guarded
from qeff_zoo.cloud import flags
from qeff_zoo.errors import ZooError


def main(argv: Sequence[str] | None = None) -> int:
    """Refuse, and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    flags.command("finetune", "Not there yet: models are not trained here.").parse_known_args(argv)
    return guarded(_refuse, argv)


def _refuse() -> None:
    raise ZooError(
        "Cannot run finetune: models are not trained here yet; expected a trained checkpoint. Train with peft or TRL, "
        "merge the adapter (merge_and_unload, save_pretrained), and run `qeff-zoo build FOLDER`."
    )


if __name__ == "__main__":
    sys.exit(main())
