# SPDX-License-Identifier: Apache-2.0
"""Running a package on the cases: which tokens went in, and what it answered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.package import Package
from qeff_zoo.runtime import TextGenerationSession, open_session
from qeff_zoo.runtime.decoder import Decoder, Piece
from qeff_zoo.runtime.encoder import EncoderSession
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks import Task, find
from qeff_zoo.validation import cases, sample_texts

#: Called after every step with 1; how many there will be is not known before.
Progress: TypeAlias = Callable[[int], None]
#: Which answer: number of the sequence, index into its positions.
Key: TypeAlias = tuple[int, int]

_GREEDY_PROMPT, _GREEDY_LENGTH = 16, 16


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a package answered, and to what.

    Args:
        sequences: Token ids.
        positions: Of each sequence, those with an answer, ascending.
        keys: By stage, of every answer.
        answers: By stage, (answers, vocab, hidden or labels).
        types: Token types of the sequences, where the package takes them.
        greedy: Prompt and continuation.
    """

    sequences: list[list[int]]
    positions: list[list[int]]
    keys: Mapping[str, list[Key]]
    answers: Mapping[str, Array]
    types: list[list[int]] | None = None
    greedy: tuple[list[int], list[int]] | None = None


def try_package(package: Package, threads: int | None, step: Progress) -> Trial:
    """Run the package; its memory is free again before the reference starts."""
    session: Any = open_session(package, threads=threads)
    task = find(package.task)
    run = _try_decoder if task.role == "decoder" else _try_encoder
    return run(session, task, step)


def call_once(package: Package) -> None:
    """Open a package and run the least call: what cannot be opened or called is no package.

    Raises:
        GenerationError: It cannot be opened.
    """
    session = open_session(package)
    if isinstance(session, EncoderSession):
        session.run([[0]])
    else:
        session.decoder.decode({0: Piece([0], 0)})


def _try_decoder(session: TextGenerationSession, task: Task, step: Progress) -> Trial:
    decoder = session.decoder
    stages = task.stages()(decoder.sizes)
    sequences = sample_texts.draw(
        cases.sequence_lengths(stages), session.tokenizer, decoder.vocab_size
    )
    ends: list[set[int]] = [set() for _ in sequences]
    for span in (span for stage in stages for call in stage.calls for span in call.spans):
        ends[span.sequence].add(span.stop - 1)
    positions = [sorted(found) for found in ends]
    keys: dict[str, list[Key]] = {}
    answers: dict[str, Array] = {}
    for stage in stages:
        spans = [span for call in stage.calls for span in call.spans]
        keys[stage.name] = [
            (span.sequence, positions[span.sequence].index(span.stop - 1)) for span in spans
        ]
        answers[stage.name] = np.stack(
            [row for call in stage.calls for row in _call(decoder, call, sequences, step)]
        )
    prompt = sequences[0][: min(_GREEDY_PROMPT, decoder.sizes.ctx_len - 1)]
    greedy = session.generate([prompt], generation_len=_GREEDY_LENGTH)[0].token_ids
    return Trial(
        sequences=sequences,
        positions=positions,
        keys=keys,
        answers=answers,
        greedy=(prompt, greedy),
    )


def _call(
    decoder: Decoder, call: cases.Call, sequences: Sequence[Sequence[int]], step: Progress
) -> list[Array]:
    pieces = {
        span.row: Piece(sequences[span.sequence][span.start : span.stop], span.start)
        for span in call.spans
    }
    prefills = call.kind == "prefill"
    logits = (
        decoder.prefill(pieces, padded=call.padded, context=call.context)
        if prefills
        else decoder.decode(pieces, context=call.context)
    )
    step(1)
    return [logits[span.row] for span in call.spans]


def _try_encoder(session: EncoderSession, task: Task, step: Progress) -> Trial:
    stages, lengths = task.stages()(session.sizes)
    sequences = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
    # As of two texts of one length each.
    types = [[int(2 * at >= len(one)) for at in range(len(one))] for one in sequences]
    given = types if session.has_token_types else None
    positions = [list(range(len(one))) if task.by_token else [0] for one in sequences]
    answers: dict[str, Array] = {}
    for stage in stages:
        found: list[Array] = []
        for call in stage.calls:
            rows = [sequences[number] for number in call.sequences]
            kinds = [types[number] for number in call.sequences] if given else None
            got = session.run(rows, call.seq_len, kinds)
            found += [
                one[: len(row)] if task.by_token else one[None]
                for one, row in zip(got, rows, strict=True)
            ]
            step(1)
        answers[stage.name] = np.concatenate(found)
    numbers = {stage.name: [n for call in stage.calls for n in call.sequences] for stage in stages}
    return Trial(
        sequences=sequences,
        positions=positions,
        keys={
            name: [(number, index) for number in found for index in range(len(positions[number]))]
            for name, found in numbers.items()
        },
        answers=answers,
        types=given,
    )
