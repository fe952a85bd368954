# SPDX-License-Identifier: Apache-2.0
"""Sample texts through a package that reads each of them in one call."""

import numpy as np

from qeff_zoo.tasks.encoders.session import EncoderSession
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import sample_texts
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext


class EncoderTrial:
    """Runs an encoder on sample texts.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: EncoderSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Run one token."""
        self.session.run([[0]])

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session, task, runs = self.session, context.task, context.runs
        stages, lengths = task.stages()(session.sizes)
        sequences = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
        # Token types of a pair of texts of equal length.
        types = [
            [int(2 * at >= len(sequence)) for at in range(len(sequence))] for sequence in sequences
        ]
        given = types if session.has_token_types else None
        # Prompts of a third of each text, which some models do not pool.
        prompts = (
            [len(sequence) // 3 for sequence in sequences] if session.excludes_prompts else None
        )
        # A third of every second text, as queries that late interaction expands.
        attended = (
            [
                len(sequence) // 3 + 1 if at % 2 else len(sequence)
                for at, sequence in enumerate(sequences)
            ]
            if session.masks_expansion
            else None
        )
        by_token = task.by_token or session.has_states
        positions = [list(range(len(sequence))) if by_token else [0] for sequence in sequences]
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            outputs: list[Array] = []
            keys[stage.name] = []
            for call in stage.calls:
                runs.end()  # rows to spare repeat the first: they belong to no run
                for row, number in enumerate(call.sequences):
                    run = runs.begin(row, number)
                    keys[stage.name] += [
                        (number, index, run) for index in range(len(positions[number]))
                    ]
                rows = [sequences[number] for number in call.sequences]
                kinds = [types[number] for number in call.sequences] if given else None
                begun = [prompts[number] for number in call.sequences] if prompts else None
                masked = [attended[number] for number in call.sequences] if attended else ()
                got = session.run(rows, call.seq_len, kinds, prompt_tokens=begun, attended=masked)
                outputs += [
                    one[: len(row)] if by_token else one[None]
                    for one, row in zip(got, rows, strict=True)
                ]
                context.step(1)
            answers[stage.name] = np.concatenate(outputs)
        return Trial(
            sequences=sequences,
            positions=positions,
            keys=keys,
            answers=answers,
            runs=runs.runs,
            types=given,
            prompts=prompts,
            attended=attended,
        )
