# SPDX-License-Identifier: Apache-2.0
"""What several tests of sampling and others use."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from transformers.generation import logits_process as reference_output

from qeff_zoo.runtime.decoding.sampling import Sampling

SHARES = st.sampled_from([0.0, 0.05, 0.3, 0.9, 0.999])


def processed(logits: np.ndarray, asked: Sampling, tokens: list[int]) -> Any:
    """Return what transformers makes of logits, as probabilities."""
    steps: list[Any] = []
    if asked.repetition_penalty != 1:
        steps.append(reference_output.RepetitionPenaltyLogitsProcessor(asked.repetition_penalty))
    steps.append(reference_output.TemperatureLogitsWarper(asked.temperature))
    if asked.top_k:
        steps.append(reference_output.TopKLogitsWarper(asked.top_k))
    if asked.top_p < 1:
        steps.append(reference_output.TopPLogitsWarper(asked.top_p))
    if asked.min_p:
        steps.append(reference_output.MinPLogitsWarper(asked.min_p))
    scores = torch.from_numpy(logits.copy())[None]
    for step in steps:
        scores = step(torch.tensor([tokens], dtype=torch.long), scores)
    return torch.softmax(scores, -1)[0].numpy()
