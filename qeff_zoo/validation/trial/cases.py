# SPDX-License-Identifier: Apache-2.0
"""What a package is tried on: which calls, in which rows, on which tokens. Pure: sizes in, scripts out.

A stage is a list of calls; a call gives rows their next tokens. All of it is teacher-forced: the
tokens come from fixed sequences, never from a model's output, so that every logit has one right
value, whatever came before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from qeff_zoo.runtime.sizes import DecoderSizes, EncoderSizes

from . import sample_images

_STEPS = 8  # decode calls in a row
_PADDED_STEPS = 2  # decode calls after a padded prefill
_SLOT_STEPS = 2  # of all slots together
_ROWS = 4  # of a wide batch, so many get tokens
_TEXTS = 16  # of an encoder, at least
#: Least number of questions that a mean over them is taken of.
ENOUGH = 16
_LEAST_CONTINUOUS = 4  # positions in which a request can outlive another
#: Drafts of a layer that are compared at each position: its own of the model's states, and one of its own states.
LAYER_ANSWERS = 2
_LONGEST = 4352  # tokens of a text: a window of 4,096 and its spare rows; the reference's scores grow with the square


@dataclass(frozen=True, kw_only=True)
class Span:
    """Tokens for one row in one call: `start:stop` of a sequence.

    Args:
        row: Row of the states.
        sequence: Number of the sequence.
        start: Position of the first token.
        stop: Position after the last.
        answers: Number of its last tokens for which logits are returned.
    """

    row: int
    sequence: int
    start: int
    stop: int
    answers: int = 1

    @property
    def answered(self) -> range:
        """Positions of the tokens that are answered by logits."""
        return range(self.stop - self.answers, self.stop)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call; rows without a span are not in it.

    Args:
        kind: Which specialization.
        spans: At most one per row.
        padded: Whether a prefill is as wide as its specialization; else as its longest span.
        context: Rows of the cache that it reads, or more; 0 for what a session would choose.
    """

    kind: Literal["prefill", "decode", "verify"]
    spans: tuple[Span, ...]
    padded: bool = False
    context: int = 0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is judged together.

    Args:
        name: Name in the manifest's validation.
        calls: Calls in order.
        after: Name of the stage whose calls these follow; empty if every row begins anew.
    """

    name: str
    calls: tuple[Call, ...]
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class EncoderCall:
    """One call of an encoder.

    Args:
        seq_len: Sequence length of the specialization.
        sequences: Number of the sequence in each row.
    """

    seq_len: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class EncoderStage:
    """As `Stage`, for an encoder."""

    name: str
    calls: tuple[EncoderCall, ...]


@dataclass(frozen=True, kw_only=True)
class ImageStage:
    """A `Stage` of image encoders.

    Args:
        name: Name in the manifest's validation.
        calls: The number of the image in each row of a call.
    """

    name: str
    calls: tuple[tuple[int, ...], ...]


#: Row -> (sequence, tokens).
_Prompts: TypeAlias = Mapping[int, tuple[int, int]]


@dataclass
class _Script:
    """Writes calls and keeps track of how far each row is."""

    sizes: DecoderSizes
    calls: list[Call] = field(default_factory=list)
    at: dict[int, tuple[int, int]] = field(default_factory=dict)

    def prefill(self, prompts: _Prompts, *, padded: bool = False) -> "_Script":
        """Begin sequences anew in some rows, together."""
        self.at.update(prompts)
        width = self.sizes.prefill_seq_len
        for start in range(0, max(length for _, length in prompts.values()), width):
            spans = [
                Span(row=row, sequence=number, start=start, stop=min(start + width, length))
                for row, (number, length) in prompts.items()
                if start < length
            ]
            self.calls.append(Call(kind="prefill", spans=tuple(spans), padded=padded))
        return self

    def read_on(self, stop: int) -> "_Script":
        """Give every row that has begun its next tokens, up to a position, in chunks."""
        width = self.sizes.prefill_seq_len
        for start in range(min(at for _, at in self.at.values()), stop, width):
            end = min(start + width, stop)
            spans = [
                Span(row=row, sequence=number, start=start, stop=end)
                for row, (number, _) in self.at.items()
            ]
            self.calls.append(Call(kind="prefill", spans=tuple(spans)))
        self.at = {row: (number, stop) for row, (number, _) in self.at.items()}
        return self

    def next(self) -> "_Script":
        """Begin another stage, whose calls follow those before."""
        return replace(self, calls=[])

    def restart(self, prompts: _Prompts) -> "_Script":
        """Forget all rows, and begin sequences in some."""
        self.at.clear()
        return self.prefill(prompts)

    def decode(self, steps: int) -> "_Script":
        """Give every row that has begun one token per call."""
        for _ in range(steps):
            spans = []
            for row, (number, at) in self.at.items():
                spans.append(Span(row=row, sequence=number, start=at, stop=at + 1))
                self.at[row] = (number, at + 1)
            self.calls.append(Call(kind="decode", spans=tuple(spans)))
        return self

    def verify(self, tokens: int) -> "_Script":
        """Give every row that has begun several tokens in one call, every other row one less."""
        spans = []
        for turn, (row, (number, at)) in enumerate(self.at.items()):
            count = max(1, tokens - turn % 2)
            spans.append(Span(row=row, sequence=number, start=at, stop=at + count, answers=count))
            self.at[row] = (number, at + count)
        self.calls.append(Call(kind="verify", spans=tuple(spans)))
        return self

    def stage(self, name: str, after: str = "") -> Stage:
        """Return what was written."""
        return Stage(name=name, calls=tuple(self.calls), after=after)


def short_stages(
    stages: Mapping[str, Sequence[Sequence[int]]], positions: Sequence[Sequence[int]]
) -> dict[str, int]:
    """Return the stages that rounding is measured in, the shortest with enough questions together, with their tokens.

    Args:
        stages: Questions by stage: the number of a sequence and an index into its positions.
        positions: Positions with a question, by sequence.
    """
    tokens = {
        name: 1 + max(positions[number][index] for number, index, *_ in keys)
        for name, keys in stages.items()
        if keys
    }
    questions: set[tuple[int, int]] = set()
    shortest: dict[str, int] = {}
    for name in sorted(tokens, key=lambda name: tokens[name]):
        if len(questions) < ENOUGH:
            shortest[name] = tokens[name]
            questions |= {(number, index) for number, index, *_ in stages[name]}
    return shortest


def decoder_stages(
    sizes: DecoderSizes, *, window_rows: int = 0, longest: int = _LONGEST
) -> list[Stage]:
    """Write the stages of a text-generation package: as a session would call it, then with each compute context.

    Args:
        sizes: Sizes of the package; a stage without room in them is left out.
        window_rows: Size of the largest sliding-window state; 0 without one.
        longest: Tokens of the longest text, where the context has room for it.
    """
    lengths = {*sizes.comp_ctx_lengths_prefill, *sizes.comp_ctx_lengths_decode}
    text, script = _one_text(sizes)
    return [
        *text,
        *_long(script, text[-1].name, window_rows, min(longest, _LONGEST)),
        *_batches(sizes),
        *_every_slot(sizes),
        *(_compute_context(sizes, length) for length in sorted(lengths)),
        *(_speculative(sizes, count) for count in sizes.num_speculative_tokens),
    ]


def _every_slot(sizes: DecoderSizes) -> Iterator[Stage]:
    """Begin a short text in each of more slots than other stages use, no two alike, and decode all of them together."""
    steps = min(_SLOT_STEPS, _steps(sizes))
    most = min(sizes.prefill_seq_len, sizes.ctx_len - max(1, steps))
    if sizes.rows > _ROWS:
        prompts = {row: (row % _ROWS, min(1 + row // _ROWS, most)) for row in range(sizes.rows)}
        yield _Script(sizes).prefill(prompts).decode(steps).stage("every_slot")


def _long(script: _Script, after: str, window_rows: int, longest: int) -> Iterator[Stage]:
    """Go beyond the rows that windows keep, by a chunk and by decoding; then to the end of the context.

    One text does both, if it reads a chunk beyond the windows after it has decoded there; it is the text of other
    stages, if that ends before.

    Args:
        script: Calls; the last row has the beginning of sequence 0.
        after: Name of the stage that ends there.
        window_rows: See `decoder_stages`.
        longest: See `decoder_stages`.
    """
    sizes = script.sizes
    row, steps = sizes.rows - 1, _steps(sizes)
    beyond = min(window_rows + sizes.prefill_seq_len // 2 + 1, sizes.ctx_len)
    end = min(sizes.ctx_len, longest)
    has_windows = 0 < window_rows < beyond <= _LONGEST
    goes_on = has_windows and steps > 0 and beyond <= end - steps

    def reach(stop: int) -> str:
        """Let the row hold the beginning of sequence 0 up to a position; return the stage that this continues."""
        nonlocal script
        if script.at[row][1] < stop or (steps and script.at[row][1] == stop):
            script = script.next().read_on(stop)
            return after
        script = _Script(sizes).prefill({row: (0, stop)})
        return ""

    if has_windows:
        last = max(1, min(window_rows - steps // 2, sizes.ctx_len - steps))
        if goes_on:
            continued = reach(last)
        else:
            continued, script = "", _Script(sizes).prefill({0: (0, beyond)})
            script.restart({row: (0, last)})
        yield script.decode(steps).stage("window", continued)
        after = "window"
    name = "ctx_len" if end == sizes.ctx_len else f"first_{end}"
    if has_windows and not goes_on:
        script = _Script(sizes).prefill({0: (0, end - steps)})
        yield script.decode(steps).stage(name)
    else:
        continued = reach(end - steps)
        yield script.decode(steps).stage(name, continued)


def _compute_context(sizes: DecoderSizes, length: int) -> Stage:
    """All of a package's stages again, as far as they fit into that many rows of the cache."""
    stages = _stages(replace(sizes, ctx_len=length))
    calls = (replace(call, context=length) for stage in stages for call in stage.calls)
    return Stage(name=f"comp_ctx_lengths_{length}", calls=tuple(calls))


def _speculative(sizes: DecoderSizes, count: int) -> Stage:
    """Logits after each of several tokens: with all drafted tokens and with fewer, one token before and after."""
    rows = min(sizes.rows, _ROWS)
    widths = [count + 1, 1, (count + 1) // 2 + 1]
    while len(widths) > 1 and sum(widths) >= sizes.ctx_len:
        widths.pop()
    room = sizes.ctx_len - sum(widths)
    short = max(1, sizes.prefill_seq_len // 2)
    script = _Script(sizes).prefill({row: (row, min(short + row, room)) for row in range(rows)})
    for width in widths:
        script = script.verify(width) if width > 1 else script.decode(1)
    return script.stage(f"num_speculative_tokens_{count}")


def _stages(sizes: DecoderSizes) -> list[Stage]:
    """Return the stages of short texts."""
    return [*_one_text(sizes)[0], *_batches(sizes)]


def _one_text(sizes: DecoderSizes) -> tuple[list[Stage], _Script]:
    """Prefill prompts of several lengths, the longest in the last row; then read that in another chunk.

    Returns:
        The stages, and a script whose last row alone goes on.
    """
    width, row = min(sizes.prefill_seq_len, sizes.ctx_len), sizes.rows - 1
    script, rows = _Script(sizes), min(sizes.rows, _ROWS)
    # Half as long are those of other stages. Only the shortest is of another text, which the reference reads as well.
    for number, length in enumerate(sorted({1, max(1, width - 1)} - {width})):
        script.prefill({number % rows: (1 - number, length)})
    script.prefill({row: (0, width)})
    stages = [script.stage("prefill")]
    script.at = {row: (0, width)}
    longer = min(width + _second_chunk(width), sizes.ctx_len - max(1, _steps(sizes)))
    if longer > width:
        script = script.next().read_on(longer)
        stages.append(script.stage("chunked_prefill", after="prefill"))
    return stages, script


def _batches(sizes: DecoderSizes) -> list[Stage]:
    """Prefill padded rows and decode them together; then let a row begin another text while others go on."""
    width, rows = sizes.prefill_seq_len, min(sizes.rows, _ROWS)
    steps = _steps(sizes)
    room = sizes.ctx_len - max(1, steps)  # prompts that leave room to decode
    short = min(max(1, width // 2), room)
    longer = min(width + _second_chunk(width), room)
    lengths = (longer, short, 1, min(width, room))
    uneven = {row: (row, lengths[row]) for row in range(rows)} if rows > 1 else {0: (1, short)}
    padded = _Script(sizes).prefill(uneven, padded=True).decode(min(_PADDED_STEPS, steps))
    stages = [padded.stage("padded_batch")]
    if steps:
        prompts = {row: (row, min(short + row, room)) for row in range(rows)}
        stages.append(_Script(sizes).prefill(prompts).decode(steps).stage("decode"))
    if rows > 1 and sizes.ctx_len >= _LEAST_CONTINUOUS:
        stages.append(_continuous(sizes, short, steps and max(1, steps // 2)))
    return stages


def _second_chunk(width: int) -> int:
    """Return the tokens of a second chunk, which is short: many variants of the reference read them."""
    return width // 8 + 1


def _steps(sizes: DecoderSizes) -> int:
    """Return how many decode calls follow each other; none of a package for prompts alone."""
    return max(1, min(_STEPS, sizes.ctx_len // 4)) if sizes.decodes else 0


def _continuous(sizes: DecoderSizes, short: int, steps: int) -> Stage:
    """Two rows at different positions, one of them given to a new request while the other goes on."""
    longest = min(sizes.prefill_seq_len, sizes.ctx_len - 2 * steps)
    script = _Script(sizes).prefill({0: (0, longest)}).prefill({1: (1, short)})
    script.decode(steps).prefill({1: (2, max(1, short - 1))})
    return script.decode(steps).stage("continuous_batching")


def uncut(stages: Sequence[Stage], images: Sequence[Sequence[tuple[int, int]]]) -> list[Stage]:
    """Extend calls that would end within an image, or another indivisible span, to its end.

    Args:
        stages: Stages before.
        images: Start and end of the images of each sequence.
    """

    def moved(number: int, position: int) -> int:
        return next((end for begin, end in images[number] if begin < position < end), position)

    extended = []
    for stage in stages:
        calls = []
        for call in stage.calls:
            spans = [
                replace(
                    span,
                    start=moved(span.sequence, span.start),
                    stop=moved(span.sequence, span.stop),
                )
                for span in call.spans
            ]
            spans = [span for span in spans if span.start < span.stop]
            kind = call.kind
            if spans != list(call.spans):
                # As long as an image, which no call that checks drafts is.
                spans = [replace(span, answers=1) for span in spans]
                kind = "decode" if call.kind == "verify" else call.kind
                if any(span.stop - span.start > 1 for span in spans):
                    kind = "prefill"
            if spans:
                calls.append(replace(call, kind=kind, spans=tuple(spans)))
        extended.append(replace(stage, calls=tuple(calls)))
    return extended


def sequence_lengths(stages: Sequence[Stage]) -> list[int]:
    """Return how many tokens of each sequence the stages need."""
    spans = [span for stage in stages for call in stage.calls for span in call.spans]
    count = max(span.sequence for span in spans) + 1
    return [
        max((span.stop for span in spans if span.sequence == number), default=1)
        for number in range(count)
    ]


def tokens_after(sequence: Sequence[int], position: int, count: int) -> list[int]:
    """Return the tokens after a position, for draft heads; the end of a sequence wraps to its beginning."""
    return [sequence[(position + 1 + place) % len(sequence)] for place in range(count)]


def tokens_of_layer(sequence: Sequence[int], position: int) -> list[int]:
    """Return the tokens after a position, for a draft layer: it stops at the end of a sequence.

    Then there may be no room for more; its answer counts as often as it would go on.
    """
    room = LAYER_ANSWERS if position + 1 < len(sequence) else 1
    return tokens_after(sequence, position, room)


def audio_stages(sizes: EncoderSizes) -> tuple[list[EncoderStage], list[int]]:
    """Write the stages of a package that reads whole recordings, the shortest of a few frames."""
    return encoder_stages(sizes, shortest=sizes.seq_lens[0] // 10, enough=0)


def encoder_stages(
    sizes: EncoderSizes, shortest: int = 3, enough: int = _TEXTS
) -> tuple[list[EncoderStage], list[int]]:
    """Write the stages of a package that reads whole texts.

    Args:
        sizes: Sizes of the package.
        shortest: Length of the shortest of several in a batch, where there is room for it.
        enough: Minimum number of sequences, so that a mean over them is meaningful.

    Returns:
        The stages, and the lengths of the sequences they name.
    """
    lengths: list[int] = []

    def call(seq_len: int, wanted: Sequence[int]) -> EncoderCall:
        first = len(lengths)
        lengths.extend(wanted)
        return EncoderCall(seq_len=seq_len, sequences=tuple(range(first, len(lengths))))

    rows = min(sizes.batch_size, _ROWS)
    stages = [
        EncoderStage(name=f"seq_len_{seq_len}", calls=(call(seq_len, [seq_len] * min(rows, 2)),))
        for seq_len in sizes.seq_lens
    ]
    padded: list[EncoderCall] = []
    for seq_len in sizes.seq_lens:
        least = min(max(3, shortest), seq_len)  # room for one token between the first and the last
        uneven = [max(least, n) for n in (seq_len // 2, seq_len - 1, least, seq_len // 3)]
        for start in range(0, len(uneven), rows):
            padded.append(call(seq_len, uneven[start : start + rows]))
    least = min(max(3, shortest), sizes.seq_lens[0])
    for number in range(0, enough - len(lengths), rows):
        wanted = [least + (number + row) % (sizes.seq_lens[0] - least + 1) for row in range(rows)]
        padded.append(call(sizes.seq_lens[0], wanted))
    stages.append(EncoderStage(name="padded_batch", calls=tuple(padded)))
    if sizes.batch_size > _ROWS:
        short = [at for one in padded if one.seq_len == sizes.seq_lens[0] for at in one.sequences]
        numbers = tuple(short[row % len(short)] for row in range(sizes.batch_size))
        whole = EncoderCall(seq_len=sizes.seq_lens[0], sequences=numbers)
        stages.append(EncoderStage(name="whole_batch", calls=(whole,)))
    return stages, lengths


def image_stages(batch_sizes: Sequence[int]) -> tuple[list[ImageStage], list[list[int]]]:
    """Return the stages of an image package: each image alone, then batches of each size.

    Returns:
        The stages, and the images that they name, as `sample_images.draw` takes them.
    """
    images = sample_images.choose(len(sample_images.SHAPES))
    alone = ImageStage(name="batch_1", calls=tuple((number,) for number in range(len(images))))
    together = [
        ImageStage(name=f"batch_{size}", calls=(tuple(row % len(images) for row in range(size)),))
        for size in batch_sizes
        if size > 1
    ]
    return [alone, *together], images
