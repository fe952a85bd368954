# SPDX-License-Identifier: Apache-2.0
"""Compute contexts (`comp_ctx_lengths`): lengths of the KV cache that a call reads, from one list per kind of call.

A KV cache of `ctx_len` is mostly empty, and a program of fixed shapes computes with all of it. A decoder may be
specialized for several lengths: each call takes the smallest that holds all of its tokens, which changes nothing but
its time. A list ascends and ends with `ctx_len`, which holds any call's tokens; no length of prefill is below
`prefill_seq_len`. Pure: sizes in, sizes and problems out; see `transforms.retained_state` for the graph.
"""

from collections.abc import Sequence


def misfits(flag: str, lengths: Sequence[int], least: int, ctx_len: int) -> list[str]:
    """Return the problems of a user's lengths.

    Args:
        flag: Flag that sets them.
        lengths: Lengths, at least one.
        least: Minimum number of tokens of a call.
        ctx_len: Length of the KV cache.
    """
    problems = []
    if list(lengths) != sorted(set(lengths)):
        problems.append(
            f"{flag} is {list(lengths)}, expected ascending lengths. Put the smallest one first."
        )
    if min(lengths) < least:
        problems.append(
            f"{flag} has {min(lengths)}, expected at least {least}: a call has that many tokens to read. Leave out "
            "smaller ones."
        )
    if max(lengths) > ctx_len:
        problems.append(
            f"{flag} has {max(lengths)}, more than the context of {ctx_len}. Choose at most {ctx_len}."
        )
    return problems


def fit(lengths: Sequence[int], least: int, ctx_len: int) -> tuple[int, ...]:
    """Return the lengths that fit, and the whole context.

    Args:
        lengths: Any lengths, ascending.
        least: Minimum number of tokens of a call.
        ctx_len: Length of the KV cache.
    """
    return (*(length for length in lengths if least <= length < ctx_len), ctx_len)
