# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows: progress bars, and text of strangers without control characters."""
