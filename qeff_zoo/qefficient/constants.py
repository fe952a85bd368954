# SPDX-License-Identifier: Apache-2.0
"""QEfficient's defaults, logger and markers, by its names."""

import logging
import os

from qeff_zoo.graph.semantic.domains import OPSET

#: QEfficient's logger.
logger = logging.getLogger("qeff_zoo.qefficient")


def _log_rank_zero(message: str, level: int = logging.INFO) -> None:
    """Log a message in the first process of several.

    Args:
        message: Text of the message.
        level: Level of the message.
    """
    if os.environ.get("RANK", "0") == "0":
        logger.log(level, message)


vars(logger)["log_rank_zero"] = _log_rank_zero
#: Version of ONNX's operators in graphs.
ONNX_EXPORT_OPSET = OPSET


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


class WQLinear_GEMM:  # noqa: N801 -- QEfficient's name
    """Marker of QEfficient's module for AWQ, of which no model here has an instance."""


class QuantLinearGPTQ:
    """Marker of QEfficient's module for GPTQ, of which no model here has an instance."""


class FP8DeQuantLinear:
    """Marker of QEfficient's module for FP8, of which no model here has an instance."""


def replace_transformers_quantizers() -> None:
    """Keep transformers' quantizers: QEfficient's read checkpoints on a CPU, and a build here reads tensors itself."""


def undo_transformers_quantizers() -> None:
    """Keep transformers' quantizers, see `replace_transformers_quantizers`."""
