# SPDX-License-Identifier: Apache-2.0
"""Running a package on the cases: which tokens went in, and what it answered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.package import Package
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime import TextGenerationSession, open_session
from qeff_zoo.runtime.ctc_session import CtcSession
from qeff_zoo.runtime.decoder import Decoder, Piece
from qeff_zoo.runtime.encoder import EncoderSession
from qeff_zoo.runtime.encoder_inputs import Seen
from qeff_zoo.runtime.image_to_text import ImageToTextSession
from qeff_zoo.runtime.images import ImageSession
from qeff_zoo.runtime.media_text import MediaTextSession, Prepared
from qeff_zoo.runtime.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.sessions import Opening, open_heads
from qeff_zoo.runtime.speech_seq2seq import SpeechSeq2SeqSession
from qeff_zoo.runtime.text2text_generation import Text2TextSession
from qeff_zoo.runtime.zero_shot_session import ZeroShotSession
from qeff_zoo.tasks import Task, find
from qeff_zoo.validation.draft_logits import DraftLayerLogits, HeadLogits, drafting
from qeff_zoo.validation.faults import Fault, of_stages
from qeff_zoo.validation.routing import Run, read_choices

from . import cases, sample_images, sample_media, sample_sounds, sample_texts

#: Called after every step with 1; how many there will be is not known before.
Progress: TypeAlias = Callable[[int], None]
#: Which answer: number of the sequence, index into its positions, number of the run that gave it.
Key: TypeAlias = tuple[int, int, int]

_GREEDY_PROMPT, _GREEDY_LENGTH = 16, 16
# A text to the end of the context, or as far as so many bytes of weights are read, but at least so many tokens:
# 1,000 tokens of a billion parameters in float32 take 16 cores a minute, all variants of the reference included.
_BYTES_READ, _LEAST_LONG = 8 << 40, 512


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a package answered, and to what.

    Args:
        sequences: Token ids; of pictures what `drawings.draw` takes; of sounds how long they are.
        positions: Of each sequence, those with an answer, ascending; with heads, again for each of them.
        keys: By stage, of every answer.
        answers: By stage, (answers, vocab, hidden or labels).
        runs: Every time that a row began a sequence, with what was chosen there.
        types: Token types of the sequences, where the package takes them.
        media: Pictures or sounds in each sequence, as a processor would prepare them; nothing where it takes none.
        of_media: The manifest's entry of those, by argument of a request, and the placeholder's token.
        drawn: By stage, the token that the package drew greedily for every answer; nothing where it draws none.
        greedy: Prompt and continuation.
        sources: Token ids of the text that each sequence is written of; of pictures what `drawings.draw` takes, with
            the tokens that are read besides behind it.
        sounds: What went in, of what reads sounds: (samples,) or (frames, bins) of features; of each sequence that is
            written of one, (bins, frames).
        texts: Token ids of what pictures are matched with; as sequences, they come after the pictures.
        faults: Those that the stages are there for.
    """

    sequences: list[list[int]]
    positions: list[list[int]]
    keys: Mapping[str, list[Key]]
    answers: Mapping[str, Array]
    runs: list[Run]
    types: list[list[int]] | None = None
    media: Sequence[Sequence[Prepared]] = ()
    of_media: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Array] = field(default_factory=dict)
    greedy: tuple[list[int], list[int]] | None = None
    sources: Sequence[Sequence[int]] = ()
    sounds: Sequence[Array] = ()
    texts: Sequence[Sequence[int]] = ()
    faults: Sequence[Fault] = ()


def try_package(
    package: Package, threads: int | None, step: Progress, opening: Opening | None = None
) -> Trial:
    """Run the package, or what is opened in its place; its memory is free again before the reference loads a model."""
    rows, task = _Rows(), find(package.task)
    observe = rows.note if task.reads == "text" else None  # which of its tokens chose what
    session: Any = open_session(package, threads=threads, observe=observe, opening=opening)
    if task.reads == "image" and task.role == "vision":
        return _try_images(session, task, step)
    if task.reads == "sound" and task.role == "encoder":
        return _try_sound(session, task, step)
    if task.role == "encoder":
        return _try_encoder(session, task, rows, step)
    session.decoder.require_logits("what its answers are compared by")
    program = package.programs[0]
    stages = task.stages()(
        session.decoder.sizes,
        window_rows=_window_rows(program),
        longest=max(_LEAST_LONG, _BYTES_READ // package.size),
    )
    opened = open_heads(package, threads, session.decoder, opening)
    return _try_decoder(
        session, stages, rows, step, drafting(opened, session.decoder) if opened else None
    )


def call_once(package: Package) -> None:
    """Open a package and run the least call: what cannot be opened or called is not a package.

    Raises:
        GenerationError: Its states do not fit into memory; or what the target's runtime raises.
    """
    session = open_session(package, lean=True)
    if isinstance(session, ImageSession):
        session.run(session.prepare([np.zeros((2, 2, 3), np.uint8)]))
    elif isinstance(session, EncoderSession):
        session.run([[0]])
    elif isinstance(session, CtcSession):
        session.run(sample_sounds.draw([session.sizes.seq_lens[0]], session))
    elif isinstance(session, SpeechSeq2SeqSession):
        session.generate(np.zeros((session.frames, *session.input_shape), np.float32), [0], 1)
    else:
        if isinstance(session, Text2TextSession):
            session.sources.read({0: [0]})
        elif isinstance(session, ImageToTextSession):
            picture = session.prepare(np.zeros((2, 2, 3), np.uint8))
            tokens = session.prompts.tokens([0], lambda _: []) if session.prompts else []
            session.sources.read({0: Seen(tokens, picture) if tokens else picture})
        call = session.decoder.decode if session.decoder.sizes.decodes else session.decoder.prefill
        call({0: Piece([0], 0)})


def _window_rows(program: CompiledProgram) -> int:
    """Return the rows of the largest state that keeps a window of keys; 0 without one."""
    windows = [state.axes[2] for state in program.states if state.kind == "window"]
    return max((rows for rows in windows if isinstance(rows, int)), default=0)


class _Rows:
    """Which run each row of a package is at, and what is chosen there."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._at: dict[int, int] = {}

    def begin(self, row: int, sequence: int) -> int:
        """Begin a sequence in a row; return the number of its run."""
        self._at[row] = len(self.runs)
        self.runs.append(Run(sequence))
        return self._at[row]

    def run(self, row: int) -> int:
        """Return the number of the run that a row is at."""
        return self._at[row]

    def end(self) -> None:
        """Take no notice of what comes now."""
        self._at.clear()

    def note(
        self, inputs: Mapping[str, Array], rows: Sequence[int], outputs: Mapping[str, Array]
    ) -> None:
        """Keep what a call chose for the tokens of rows that are at a run; an encoder's rows are all from 0 on."""
        batch, width = inputs["input_ids"].shape
        positions = inputs.get("position_ids")
        real = inputs["attention_mask"] > 0 if positions is None else positions >= 0
        # A target may leave out the columns that are padding in all rows; tokens come first.
        narrow = int(real.sum(1).max())
        chosen = read_choices(outputs, batch, narrow) | read_choices(outputs, batch, width)
        for place, row in enumerate(rows or range(batch)):
            if chosen and row in self._at:
                length = int(real[place].sum())
                self.runs[self._at[row]].note(
                    {name: found[place, :length] for name, found in chosen.items()}
                )


@dataclass(frozen=True, kw_only=True)
class _SampleInputs:
    """What a trial reads: sequences, and of some tasks what each of them is about, else nothing.

    Args:
        stages: Its calls; an image may have to be in one of them.
        sequences: Token ids.
        insets: The pictures or sounds of each as places in it, and `media` themselves; `of_media` says what they are.
        windows: The sound of each, prepared.
        sources: The text, or the picture, that each is written of.
    """

    stages: Sequence[cases.Stage]
    sequences: list[list[int]]
    insets: list[MultimodalSpans | None]
    media: list[list[Prepared]]
    of_media: dict[str, Any]
    windows: list[Array]
    sources: list[list[int]]

    @classmethod
    def of(cls, session: Any, stages: Sequence[cases.Stage]) -> "_SampleInputs":
        """Draw what a session reads."""
        lengths = cases.sequence_lengths(stages)
        sequences = sample_texts.draw(lengths, session.tokenizer, session.decoder.vocab_size)
        insets: list[MultimodalSpans | None] = [None] * len(sequences)
        windows: list[Array] = []
        if isinstance(session, SpeechSeq2SeqSession):
            windows = sample_sounds.draw(_sound_lengths(session, len(sequences)), session)
        sources: list[list[int]] = []
        if isinstance(session, ImageToTextSession):
            sequences = sample_texts.without_padding(sequences, session)
            sources = sample_images.choose(len(sequences))
            if session.prompts:
                sources = sample_texts.behind_pictures(sources, session)
        if isinstance(session, Text2TextSession):
            sequences, sources = sample_texts.with_sources(sequences, session)
        media: list[list[Prepared]] = []
        of_media: dict[str, Any] = {}
        if isinstance(session, MediaTextSession):
            sequences, media = sample_media.insert(session, sequences)
            of_media = session.of_media
            insets = [session.insets(*pair) for pair in zip(sequences, media, strict=True)]
            if session.media.whole:
                stages = cases.uncut(stages, [one.stretches if one else () for one in insets])
        return cls(
            stages=stages,
            sequences=sequences,
            insets=insets,
            media=media,
            of_media=of_media,
            windows=windows,
            sources=sources,
        )

    def begin(self, session: Any, spans: Sequence[cases.Span]) -> None:
        """Let a session hear or read what the sequences that begin are about."""
        if self.windows:
            session.listen({span.row: self.windows[span.sequence] for span in spans})
        if self.sources:
            session.sources.read({span.row: self.read(session, span.sequence) for span in spans})

    def read(self, session: Any, number: int) -> Any:
        """Return what the encoder reads of a sequence."""
        source = self.sources[number]
        if isinstance(session, ImageToTextSession):
            shown, tokens = source[: sample_images.NUMBERS], source[sample_images.NUMBERS :]
            picture = session.prepare(sample_images.draw(*shown))
            return Seen(tokens, picture) if tokens else picture
        return source

    def piece(self, session: Any, span: cases.Span) -> Piece:
        """Return what a call runs of a sequence."""
        reads = self.sources or self.windows
        return Piece(
            self.sequences[span.sequence][span.start : span.stop],
            span.start,
            self.insets[span.sequence],
            source=session.sources.lengths[span.row] if reads else 0,
        )

    def greedy(self, session: Any) -> tuple[list[int], list[int]]:
        """Return the beginning of the first sequence, and how a session goes on with it."""
        sizes, insets = session.decoder.sizes, self.insets[0]
        prompt = self.sequences[0][: min(_GREEDY_PROMPT, sizes.ctx_len - 1)]
        if insets is not None:  # to the end of its last one, or to what ends that
            end = int(insets.places[-1]) + 1 + bool(session.media.begun)
            prompt = self.sequences[0][:end]
        length = _GREEDY_LENGTH if sizes.decodes else 1
        if self.windows:
            length = min(length, sizes.ctx_len - len(prompt) + 1)  # the last is run no more
            return prompt, session.generate(self.windows[0], prompt, length)
        request = TextGenerationSession.request(session, prompt, generation_len=length)
        if insets is not None:
            request = replace(request, insets=session.insets(prompt, self.media[0]))
        if self.sources:
            source = self.read(session, 0)
            if isinstance(source, Seen):
                request = replace(request, picture=source.picture, source=tuple(source.tokens))
            elif isinstance(session, ImageToTextSession):
                request = replace(request, picture=source)
            else:
                request = replace(request, source=tuple(source))
        return prompt, session.generate([request])[0].token_ids


def _try_decoder(
    session: Any,
    stages: Sequence[cases.Stage],
    rows: _Rows,
    step: Progress,
    drafts: HeadLogits | DraftLayerLogits | None = None,
) -> Trial:
    decoder, drawn = session.decoder, _SampleInputs.of(session, stages)
    sequences = drawn.sequences
    ends: list[set[int]] = [set() for _ in sequences]
    for span in (span for stage in drawn.stages for call in stage.calls for span in call.spans):
        ends[span.sequence].update(span.answered)
    each = 1 + (drafts.count if drafts else 0)
    positions = [[place for place in sorted(found) for _ in range(each)] for found in ends]
    keys: dict[str, list[Key]] = {}
    answers, tokens = dict[str, Array](), dict[str, Array]()
    for stage in drawn.stages:
        keys[stage.name], found, drew = [], [], list[int]()
        for call in stage.calls:
            for span in call.spans:
                if span.start == 0:
                    rows.begin(span.row, span.sequence)
                keys[stage.name] += [
                    (span.sequence, positions[span.sequence].index(place) + one, rows.run(span.row))
                    for place in span.answered
                    for one in range(each)
                ]
            drawn.begin(session, [span for span in call.spans if span.start == 0])
            pieces = {span.row: drawn.piece(session, span) for span in call.spans}
            step(1)
            answered = _call(decoder, call, pieces)
            found += drafts.beside(decoder, call, sequences, answered) if drafts else answered
            drew += [decoder.drawn[one.row].token for one in call.spans if decoder.sampler]
        answers[stage.name], tokens[stage.name] = np.stack(found), np.array(drew)
    rows.end()
    return Trial(
        sequences=sequences,
        positions=positions,
        keys=keys,
        answers=answers,
        runs=rows.runs,
        faults=of_stages(drawn.stages),
        media=drawn.media,
        of_media=drawn.of_media,
        drawn=tokens if decoder.sampler else {},
        greedy=drawn.greedy(session),
        sources=drawn.sources,
        sounds=[session.as_given(window) for window in drawn.windows],
    )


def _sound_lengths(session: SpeechSeq2SeqSession, count: int) -> list[int]:
    """Return how long the sounds are that sequences are written of: windows, or the longest and others in turn."""
    if not session.sources.any_length:
        return [session.frames] * count
    return [session.frames // (1 + number % 3) for number in range(count)]


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


def _try_encoder(session: EncoderSession, task: Task, kept: _Rows, step: Progress) -> Trial:
    stages, lengths = task.stages()(session.sizes)
    sequences = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
    # As of two texts of one length each.
    types = [[int(2 * at >= len(one)) for at in range(len(one))] for one in sequences]
    given = types if session.has_token_types else None
    positions = [list(range(len(one))) if task.by_token else [0] for one in sequences]
    answers: dict[str, Array] = {}
    keys: dict[str, list[Key]] = {}
    for stage in stages:
        found: list[Array] = []
        keys[stage.name] = []
        for call in stage.calls:
            kept.end()  # rows to spare repeat the first: they belong to no run
            for row, number in enumerate(call.sequences):
                run = kept.begin(row, number)
                keys[stage.name] += [
                    (number, index, run) for index in range(len(positions[number]))
                ]
            rows = [sequences[number] for number in call.sequences]
            kinds = [types[number] for number in call.sequences] if given else None
            got = session.run(rows, call.seq_len, kinds)
            found += [
                one[: len(row)] if task.by_token else one[None]
                for one, row in zip(got, rows, strict=True)
            ]
            step(1)
        answers[stage.name] = np.concatenate(found)
    return Trial(
        sequences=sequences,
        positions=positions,
        keys=keys,
        answers=answers,
        runs=kept.runs,
        types=given,
    )


def _try_sound(session: CtcSession, task: Task, step: Progress) -> Trial:
    stages, lengths = task.stages()(session.sizes)
    sounds = sample_sounds.draw(lengths, session)
    positions: list[list[int]] = [[] for _ in sounds]
    answers: dict[str, Array] = {}
    keys: dict[str, list[Key]] = {}
    for stage in stages:
        found: list[Array] = []
        keys[stage.name] = []
        for call in stage.calls:
            got = session.run([sounds[number] for number in call.sequences], call.seq_len)
            for number, frames in zip(call.sequences, got, strict=True):
                positions[number] = list(range(len(frames)))
                keys[stage.name] += [(number, index, 0) for index in positions[number]]
                found.append(frames)
            step(1)
        answers[stage.name] = np.concatenate(found)
    return Trial(
        sequences=[[length] for length in lengths],
        positions=positions,
        keys=keys,
        answers=answers,
        runs=[],
        sounds=sounds,
    )


def _try_images(session: ImageSession, task: Task, step: Progress) -> Trial:
    stages, pictures = task.stages()(session.batch_sizes)
    pixels = session.prepare([sample_images.draw(*picture) for picture in pictures])
    answers: dict[str, Array] = {}
    keys: dict[str, list[Key]] = {}
    for stage in stages:
        found = []
        for call in stage.calls:
            found.append(session.run(pixels[list(call)]))
            step(1)
        keys[stage.name] = [(number, 0, 0) for call in stage.calls for number in call]
        answers[stage.name] = np.concatenate(found)
    texts: list[list[int]] = []
    if isinstance(session, ZeroShotSession):
        longest = session.max_length
        lengths = [longest, longest // 2 + 1, 1, longest // 3 + 1]
        texts = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
        for size in session.batch_sizes:
            rows = [number % len(texts) for number in range(max(size, len(texts)))]
            calls = [
                rows[start : start + size] for start in range(0, len(rows) // size * size, size)
            ]
            told = [session.run_texts([texts[one] for one in call])["output"] for call in calls]
            stage_name = f"texts_{size}"
            keys[stage_name] = [(len(pictures) + one, 0, 0) for call in calls for one in call]
            answers[stage_name] = np.concatenate(told)
            step(1)
    return Trial(
        sequences=pictures,
        positions=[[0] for _ in (*pictures, *texts)],
        keys=keys,
        answers=answers,
        runs=[],
        texts=texts,
    )
