# SPDX-License-Identifier: Apache-2.0
"""One call of a decoder, and the choice of the next tokens: inputs, shapes, sampling, adapters."""
