# SPDX-License-Identifier: Apache-2.0
"""Trial: the cases, sample inputs and faults of a validation, and the runs of a package on them."""
