# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows: progress bars, plots, and text of strangers without control characters."""
