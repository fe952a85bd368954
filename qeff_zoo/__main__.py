# SPDX-License-Identifier: Apache-2.0
"""`python -m qeff_zoo` is `qeff-zoo`."""

import sys

from qeff_zoo.cli import main

sys.exit(main())
