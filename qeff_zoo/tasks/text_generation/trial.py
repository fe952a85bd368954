# SPDX-License-Identifier: Apache-2.0
"""Sample texts through a package that generates: prefill, decode and draft calls, then a greedy continuation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.decoding.sampling import Sampling
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.text_generation import TextGenerationSession
from qeff_zoo.sessions.opening import open_heads
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import cases, sample_texts
from qeff_zoo.validation.trial.draft_logits import DraftLayerLogits, HeadLogits, drafting
from qeff_zoo.validation.trial.faults import of_stages
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext
from qeff_zoo.validation.trial.phases import expect

_GREEDY_PROMPT, _GREEDY_LENGTH = 16, 16
# A text up to the end of the context, or as long as this many bytes of weights are read, but with a minimum number of
# tokens: 1,000 tokens of a billion parameters in float32 take 16 cores a minute, with all variants of the reference.
_BYTES_READ, _LEAST_LONG = 8 << 40, 512


class DecoderTrial:
    """Runs a decoder on sample texts. Subclasses add a task's other decoder inputs.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        #: Calls, and the token ids of each sequence in them; set by `draw`.
        self.stages: Sequence[cases.Stage] = ()
        self.sequences: list[list[int]] = []

    # --- hooks of a task --------------------------------------------------------------------------

    def draw(self, stages: Sequence[cases.Stage]) -> None:
        """Set the stages, and their inputs."""
        session, self.stages = self.session, stages
        lengths = cases.sequence_lengths(stages)
        self.sequences = sample_texts.draw(lengths, session.tokenizer, session.decoder.vocab_size)

    def begin(self, spans: Sequence[cases.Span]) -> None:
        """Encode the inputs of the decoder besides its tokens, for sequences that begin."""

    def begin_any(self) -> None:
        """Encode the smallest input of the decoder's slot 0 besides its tokens."""

    def source_length(self, row: int) -> int:
        """Return how many encoder outputs a row attends to."""
        return 0

    def spans(self, number: int) -> MultimodalSpans | None:
        """Return the images or audio among the tokens of a sequence."""
        return None

    def continued(self, prompt: list[int], length: int) -> list[int]:
        """Continue a beginning of the first sequence greedily."""
        tokens: list[int] = self.session.generate([self.request(prompt, length)])[0].token_ids
        return tokens

    def request(self, prompt: list[int], length: int) -> Request:
        """Return the request of that continuation."""
        return TextGenerationSession.request(
            self.session,
            prompt,
            generation_len=length,
            sampling=Sampling(temperature=0),
            settings=GenerationSettings(),
        )

    def first_prompt(self) -> list[int]:
        """Return a beginning of the first sequence."""
        return self.sequences[0][: min(_GREEDY_PROMPT, self.session.decoder.sizes.ctx_len - 1)]

    def about(self) -> Mapping[str, Any]:
        """Return the reference's inputs besides the tokens, as fields of `Trial`."""
        return {}

    # --- the trial --------------------------------------------------------------------------------

    def call_once(self) -> None:
        """Run one token."""
        self.begin_any()
        decoder = self.session.decoder
        call = decoder.decode if decoder.sizes.decodes else decoder.prefill
        call({0: Piece([0], 0)})

    def run(self, context: TrialContext) -> Trial:
        """Run every stage, and continue the first sequence."""
        package, decoder = context.package, self.session.decoder
        decoder.require_logits("what its answers are compared by")
        self.draw(
            context.task.stages()(
                decoder.sizes,
                window_rows=_window_rows(package.programs[0]),
                longest=max(_LEAST_LONG, _BYTES_READ // package.size),
            )
        )
        opened = open_heads(package, context.threads, decoder, context.opening)
        drafts = drafting(opened, decoder) if opened else None
        return self._run_stages(context, drafts)

    def _run_stages(
        self, context: TrialContext, drafts: HeadLogits | DraftLayerLogits | None
    ) -> Trial:
        decoder, sequences, runs = self.session.decoder, self.sequences, context.runs
        ends: list[set[int]] = [set() for _ in sequences]
        for span in (span for stage in self.stages for call in stage.calls for span in call.spans):
            ends[span.sequence].update(span.answered)
        each = 1 + (drafts.count if drafts else 0)
        positions = [[place for place in sorted(found) for _ in range(each)] for found in ends]
        keys: dict[str, list[Key]] = {}
        answers, tokens = dict[str, Array](), dict[str, Array]()
        names = (
            {stage.name for stage in self.stages} if context.stages is None else {*context.stages}
        )
        for stage in reversed(self.stages):  # a stage precedes those that continue it
            names |= {stage.after} if stage.name in names else set()
        calls = [call for stage in self.stages if stage.name in names for call in stage.calls]
        expect(context.step, sum(map(_tokens, calls)))
        for stage in self.stages:
            if stage.name not in names:
                continue
            keys[stage.name], logits, drew = [], [], list[int]()
            for call in stage.calls:
                for span in call.spans:
                    if span.start == 0:
                        runs.begin(span.row, span.sequence)
                    known = positions[span.sequence]
                    keys[stage.name] += [
                        (span.sequence, known.index(place) + number, runs.run(span.row))
                        for place in span.answered
                        for number in range(each)
                    ]
                self.begin([span for span in call.spans if span.start == 0])
                pieces = {span.row: self._piece(span) for span in call.spans}
                answered = _call(decoder, call, pieces)
                context.step(_tokens(call))
                logits += drafts.beside(decoder, call, sequences, answered) if drafts else answered
                drew += [decoder.drawn[one.row].token for one in call.spans if decoder.sampler]
            answers[stage.name], tokens[stage.name] = np.stack(logits), np.array(drew)
        runs.end()
        return Trial(
            sequences=sequences,
            positions=positions,
            keys=keys,
            answers=answers,
            runs=runs.runs,
            faults=of_stages(self.stages),
            drawn=tokens if decoder.sampler else {},
            greedy=self._greedy() if context.continues else None,
            **self.about(),
        )

    def _piece(self, span: cases.Span) -> Piece:
        """Return a call's part of a sequence."""
        return Piece(
            self.sequences[span.sequence][span.start : span.stop],
            span.start,
            self.spans(span.sequence),
            source=self.source_length(span.row),
        )

    def _greedy(self) -> tuple[list[int], list[int]] | None:
        prompt = self.first_prompt()
        length = _GREEDY_LENGTH if self.session.decoder.sizes.decodes else 1
        return prompt, self.continued(prompt, length)


def _window_rows(program: CompiledProgram) -> int:
    """Return the length of the largest sliding-window KV state; 0 without one."""
    windows = [state.axes[2] for state in program.states if state.kind == "window"]
    return max((rows for rows in windows if isinstance(rows, int)), default=0)


def _tokens(call: cases.Call) -> int:
    return sum(span.stop - span.start for span in call.spans)


def _call(decoder: Decoder, call: cases.Call, pieces: Mapping[int, Piece]) -> list[Array]:
    if call.kind == "verify":
        several = decoder.verify(pieces, context=call.context)
        return [one for span in call.spans for one in several[span.row]]
    logits = (
        decoder.prefill(pieces, padded=call.padded, context=call.context)
        if call.kind == "prefill"
        else decoder.decode(pieces, context=call.context)
    )
    return [logits[span.row] for span in call.spans]
