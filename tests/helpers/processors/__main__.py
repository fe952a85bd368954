# SPDX-License-Identifier: Apache-2.0
"""Run a command as on a processor with AVX2 alone; `--check` describes whether that is of use."""

import os
import sys

from processors import avx2, obstacle

problem = obstacle()
if problem:
    sys.exit(f"Nothing runs as with AVX2 alone: {problem}.")
if sys.argv[1:] == ["--check"]:
    sys.exit()
os.execvpe(sys.argv[1], sys.argv[1:], avx2())
