# SPDX-License-Identifier: Apache-2.0
"""Farm: many builds on one or many machines, from one zoo file, scheduled by Ray (extra `farm`)."""
