# SPDX-License-Identifier: Apache-2.0
"""The reference: unpatched transformers, in a process of its own."""
