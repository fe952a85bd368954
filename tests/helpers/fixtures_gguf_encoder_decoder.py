# SPDX-License-Identifier: Apache-2.0
"""What several tests of gguf encoder decoder and others use."""

KINDS = ("t5", "umt5")
