# SPDX-License-Identifier: Apache-2.0
"""What several tests of media recipes and others use."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import parity
import torch

from qeff_zoo.contract import (
    Tracing,
    find,
)
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.multimodal.encoding.vision_encoder import Vision
from qeff_zoo.multimodal.families.molmo2 import Molmo2
from qeff_zoo.multimodal.manifest import entry_of
from qeff_zoo.recipe import Shape
from qeff_zoo.runtime.caches.image_prompt_templates import Layout
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.program import Array, Memory, Tensor
from qeff_zoo.tasks.multimodal.any_to_any_session import AnyToAnySession
from qeff_zoo.tasks.multimodal.audio_text_session import AudioTextToTextSession
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.image_text_to_text import sides_of
from qeff_zoo.tasks.multimodal.samples import noise
from qeff_zoo.tasks.multimodal.session import MediaTextSession
from qeff_zoo.validation.judgement.parity import relative_errors
from qeff_zoo.validation.reference.media import Media

CHUNK, CTX_LEN, IMAGES = 8, 128, 2


#: Relative error of logits that is no reason to measure the noise.
_USUAL = 5e-5


class Eager:
    """A program that is run as it would be traced.

    Args:
        tracing: Of it, of a model with weights.
        specializations: Of a package.
        ctx_len: Of its states.
    """

    def __init__(
        self, tracing: Tracing, specializations: Sequence[Any] = (), ctx_len: int = CTX_LEN
    ) -> None:
        self._tracing, self.states = tracing, list(tracing.states)
        self.specializations = specializations
        given = tracing.inputs.get("given") or tracing.inputs.get("more") or []
        axes = tracing.dynamic_shapes.get("given") or tracing.dynamic_shapes.get("more") or []
        names = tracing.input_names[-len(given) :] if given else []
        shapes = {
            name: tuple(
                getattr(axis.get(place), "__name__", size) for place, size in enumerate(one.shape)
            )
            for name, one, axis in zip(names, given, axes, strict=True)
        }
        self._given = names
        plain = {"input_ids": ("batch_size", "seq_len"), "position_ids": ("batch_size", "seq_len")}
        self.inputs = {
            name: Tensor(dtype=np.dtype(np.float32), shape=shape)
            for name, shape in {**(plain if self.states else {}), **shapes}.items()
        }
        head = tracing.module.model.get_output_embeddings() if self.states else None
        vocabulary = 0 if head is None else head.weight.shape[0]
        self.outputs = {
            name: Tensor(dtype=np.dtype(np.float32), shape=(1, 1, vocabulary))
            for name in tracing.output_names
        }
        sizes = {"ctx_len": ctx_len, "max_num_images": IMAGES}
        self._memory = {
            state.name: np.zeros(
                [2, *(sizes.get(str(size), size) for size in state.axes[1:])], np.float32
            )
            for state in self.states
        }
        # Nothing is kept of prompts here.
        self.memory = Memory(self._memory, is_current=False)

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        return [sorted(starts)]

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> dict[str, Array]:
        given = {
            name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()
        }
        more = [given[name] for name in self._given]
        with torch.no_grad():
            if not self.states:
                made = self._tracing.module(more)
                found = {
                    name: one.numpy()
                    for name, one in zip(self._tracing.output_names, made, strict=True)
                }
                self.outputs = {  # as a manifest says them
                    name: Tensor(dtype=value.dtype, shape=value.shape)
                    for name, value in found.items()
                }
                return found
            past = [torch.from_numpy(self._memory[state.name][list(rows)]) for state in self.states]
            logits, *present = self._tracing.module(
                given["input_ids"], given["position_ids"], past, more=more
            )
        for state, new in zip((job for job in self.states if job.written), present, strict=True):
            self._memory[state.name][list(rows)] = new.numpy()
        return {self._tracing.output_names[0]: logits.numpy()}


def session_of(case: parity.Case, subject: parity.Subject) -> MediaTextSession:
    """Open what a package of the case would have, with PyTorch in place of a runtime."""
    assert case.recipe.media is not None
    task, model = find(case.recipe.task), subject.transformed
    most = image_count_of(case)
    ctx_len = 2 * case.tiny.ctx_len or CTX_LEN
    chunk = ctx_len // 16
    shape = Shape(prefill_seq_len=chunk, ctx_len=ctx_len, batch_size=2, max_num_images=most or 0)
    readers = [part for part in task.before if part.needed(case.recipe)]
    images, audio = case.recipe.images, case.recipe.audio
    chosen: dict[str, Any] = {"images": entry_of(images)} if images else {}
    if audio:
        chosen["audio"] = entry_of(audio)
    of_images = {name: value for name, value in chosen.items() if name == "images"}
    if images and (images.tiles or case.recipe.requires):
        of_images["sides"] = sides_of(image_processor(case.tiny.image_processor), images.tiles)
    # An export folds the layers of these.
    assert all(part.half(model).config for part in (task, *readers) if part.half)
    session: MediaTextSession = task.session()(
        subject.folder / "checkpoint",
        Eager(task.tracing(model, **chosen), task.specializations(shape), ctx_len),
        **{
            part.role: Eager(part.tracing(model, **(chosen if part.role == "audio" else of_images)))
            for part in readers
        },
        **{
            part.role: partial(Eager, part.tracing(model, **of_images))
            for part in task.beside
            if part.optional and part.needed(case.recipe)
        },
        chosen=chosen,
    )
    if case.tiny.image_processor and isinstance(session, ImageTextToTextSession):
        session._processor = image_processor(case.tiny.image_processor, case.recipe.image_processor)
    return session


def image_count_of(case: parity.Case) -> int | None:
    """Return how many images there may be, where a package has room for so many."""
    return IMAGES if next(iter(case.recipe.shapes.values())).max_num_images else None


def shown_to(session: MediaTextSession) -> list[Any]:
    """Prepare three images, wide, high and square where the model tells them apart; or recordings of three lengths.

    Of a model that reads both in one prompt, two of each: a picture is first, and a sound.
    """
    random = np.random.default_rng(0)
    if isinstance(session, AudioTextToTextSession):
        return list(islice(session.media.samples(session.reader.shape), 3))
    if isinstance(session, AnyToAnySession):
        audio = session.audio.samples(session.audio_reader.shape)
        image, other = (noise(session, size, random) for size in ((2, 3), (3, 1)))
        return [image, next(audio), next(audio), other]
    assert isinstance(session, ImageTextToTextSession)
    if session._processor is not None:
        sizes = (24, 40), (41, 23), (30, 30)
        return [session.prepare(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]
    return [noise(session, size, random) for size in ((2, 3), (3, 1), (2, 2))]


def check(session: MediaTextSession, subject: parity.Subject) -> None:
    """Compare every call's logits with those of one plain forward."""
    shown = shown_to(session)
    names = ("image_start_token_id", "image_end_token_id")
    begun, ended = ([session.config[name]] if name in session.config else [] for name in names)
    encoded = session.look(shown)
    if isinstance(session.reader, Vision) and not isinstance(
        session.media, Molmo2
    ):  # which alone knows
        for one, read in zip(shown, encoded, strict=True):
            counted = session.reader.measure(one) if read.kind == "images" else read
            assert counted is not None
            assert (counted.rows, counted.grid) == (read.rows, read.grid)
    runs = [[*begun, *session.run_begun(encoding), *ended] for encoding in encoded]
    last = [token for run in runs[2:] for token in (*run, 12)]
    rows = [[3, *runs[0], 4, 5, *runs[1], 6, 7, 8, 9], [10, 11, *last, 13, 14]]
    recorded = [shown[:2], shown[2:]]
    right = [expected(subject, session, *pair) for pair in zip(rows, recorded, strict=True)]
    wrong = expected(subject, session, rows[0], [other(one) for one in recorded[0]])
    assert relative_errors(right[0][-1:], wrong[-1:]).max() > 1e-3, "what it is shown does not show"
    spans = [session.spans(*pair) for pair in zip(rows, recorded, strict=True)]
    done, errors = [0, 0], []
    chunk = session.decoder.sizes.prefill_seq_len
    while any(at < len(row) for at, row in zip(done, rows, strict=True)):
        pieces = {}
        for number, (at, row, shown_) in enumerate(zip(done, rows, spans, strict=True)):
            if at < len(row):
                assert shown_ is not None
                length = 1 if at >= len(row) - 2 else min(chunk, len(row) - 2 - at)
                stop = shown_.end(at, at + length)
                pieces[number] = Piece(row[at:stop], at, shown_)
        for number, logits in session.decoder.prefill(pieces).items():
            done[number] = pieces[number].stop
            settings = right[number][done[number] - 1]
            errors.append(relative_errors(settings[None], logits[None]).max())
    # Some models amplify the roundings of a processor's float32.
    rounding = 0.0
    if max(errors) >= _USUAL:
        for tokens, images, plain in zip(rows, recorded, right, strict=True):
            exact = expected(subject, session, tokens, images, torch.float64)
            rounding = max(rounding, relative_errors(exact, plain).max())
    assert max(errors) < max(_USUAL, parity.TOLERANCE["fp32"] * rounding), max(errors)


def other(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the negative of an image or a recording."""
    floats = {name: -array for name, array in shown.items() if array.dtype.kind == "f"}
    return {**shown, **floats}


def expected(
    subject: parity.Subject,
    session: MediaTextSession,
    tokens: Sequence[int],
    images: Sequence[Mapping[str, Any]],
    dtype: torch.dtype = torch.float32,
) -> Array:
    """Compute Hugging Face's logits of every position."""
    arrays = {
        f"media.0.{place}.{name}": array
        for place, image in enumerate(images)
        for name, array in image.items()
    }
    settings = {
        "media": [len(images)],
        "of_media": session.of_media,
    }
    ids = torch.tensor([tokens])
    model = subject.hf if dtype is torch.float32 else subject.hf64
    shown = Media(settings, arrays, model).of([0], ids, dtype)
    with torch.no_grad():
        logits: Array = model(input_ids=ids, use_cache=False, **shown).logits[0].numpy()
    return logits


def mentioned(layout: Layout, image: Encoded) -> str:
    """Write an image as text, with `P` for each placeholder."""
    parts = layout.write(image.grid, image.rows)
    around = {f"visual_indicator_token_ids.{at}": name for at, name in enumerate(AROUND)}
    return "".join(
        "P" * part if isinstance(part, int) else around.get(part, part) for part in parts
    )


#: What begins and ends tiles of Ovis 2, and stands between them.
AROUND = "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"
