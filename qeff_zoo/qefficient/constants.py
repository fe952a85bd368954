# SPDX-License-Identifier: Apache-2.0
"""QEfficient's defaults, logger and markers, by its names."""

import logging

#: QEfficient's logger.
logger = logging.getLogger("qeff_zoo.qefficient")


class Constants:
    """QEfficient's defaults."""

    SEQ_LEN = 32
    CTX_LEN = 32
    PROMPT_LEN = 8
    INPUT_STR = ("My name is",)
    NUM_SPECULATIVE_TOKENS = 2
    MAX_TOP_K_IDS = 512


class FP16ClipTransform:
    """Marker that QEfficient's scripts remove from a list of transforms; graphs here clip no constants."""
