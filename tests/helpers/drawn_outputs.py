# SPDX-License-Identifier: Apache-2.0
"""Outputs that a grammar allows, drawn at random without a model."""

import random

import numpy as np

from qeff_zoo.runtime import Grammar, TextGenerationSession


def drawn(
    session: TextGenerationSession, grammar: Grammar, seed: int, most: int = 160
) -> str | None:
    """Draw an output among all allowed tokens, most often those that end something; None if it does not end."""
    guide, draw, tokenizer = session.guides.guide(grammar), random.Random(seed), session.tokenizer
    assert tokenizer is not None
    texts = tokenizer.token_bytes or {}
    found: list[int] = []
    for _ in range(most):
        allowed = np.flatnonzero(guide.allowed()).tolist()
        ends = [name for name in allowed if any(mark in texts.get(name, b"") for mark in b'",]}:')]
        token = draw.choice(ends if ends and draw.random() < 0.7 else allowed)
        assert guide.allows(token)
        if token in session.eos_token_ids or guide.take(token):
            return tokenizer.decode([*found, token])
        found.append(token)
    return None
