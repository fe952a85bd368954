# SPDX-License-Identifier: Apache-2.0
"""Tracing of the kinds of models that several tasks share: decoders, encoder-decoders and CTC models."""
