# SPDX-License-Identifier: Apache-2.0
"""QEfficient's example scripts on qeff-zoo: a checkout of QEfficient in, the result of each script out."""
