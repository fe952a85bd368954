# SPDX-License-Identifier: Apache-2.0
"""Compute contexts (`comp_ctx_lengths`): how many rows of the cache a call reads, from a list for each kind of call.

A cache of `ctx_len` rows is mostly empty, and a program of fixed shapes computes with all of them. So a decoder may be
specialized for several lengths: each call takes the smallest that holds all of its tokens, which changes nothing but
the time it takes. A list ascends and ends with `ctx_len`, which holds any call's tokens; of prefill no length is below
`prefill_seq_len`. Pure: sizes in, sizes and problems out; see `transforms.retained_state` for what a graph does.
"""

from collections.abc import Sequence


def misfits(flag: str, lengths: Sequence[int], least: int, ctx_len: int) -> list[str]:
    """Return all that is wrong with lengths that a user gave.

    Args:
        flag: What the user calls them.
        lengths: At least one.
        least: Tokens that a call has to read.
        ctx_len: Rows of the cache.
    """
    found = []
    if list(lengths) != sorted(set(lengths)):
        found.append(
            f"{flag} is {list(lengths)}, expected ascending lengths. Put the smallest one first."
        )
    if min(lengths) < least:
        found.append(
            f"{flag} has {min(lengths)}, expected at least {least}: a call has that many tokens to read. Leave out "
            "smaller ones."
        )
    if max(lengths) > ctx_len:
        found.append(
            f"{flag} has {max(lengths)}, more than the context of {ctx_len}. Choose at most {ctx_len}."
        )
    return found


def fit(lengths: Sequence[int], least: int, ctx_len: int) -> tuple[int, ...]:
    """Return those lengths that fit, and the whole context.

    Args:
        lengths: Any, ascending.
        least: Tokens that a call has to read.
        ctx_len: Rows of the cache.
    """
    return (*(length for length in lengths if least <= length < ctx_len), ctx_len)
