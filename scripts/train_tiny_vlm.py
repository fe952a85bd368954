#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the small LLaVA of `examples/tiny-vlm` on images of shapes that it draws itself.

Out: a Hugging Face checkpoint folder with its own tokenizer, chat template and processor, images of scenes that were
held out from training, and a model card with the share of questions about such scenes that are answered right. The same
seed, threads and library versions give the same weights.

    python scripts/train_tiny_vlm.py --output examples/tiny-vlm
"""

import argparse
import hashlib
import json
import math
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from PIL import Image, ImageDraw
from train_tiny import ASSISTANT, BOS, TURN, USER, optimizers, progress, train, train_tokenizer
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

IMAGE = "<image>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{% endif %}{{ '<|end_of_turn|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SIDE, PATCH = 48, 8  # of the vision encoder: 36 patches, each of which becomes a token
MAX_POSITIONS = 512
VOCABULARY = 384  # bytes, special tokens, and each word of the answers
HELD_OUT_SHARE = 8  # one scene in this many is never trained on
LATER = 0.4  # of the learning rate, of a checkpoint that training goes on with
DRAWN = 4  # times that each of those is drawn to ask about it
COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 160, 60),
    "blue": (45, 80, 215),
    "yellow": (235, 205, 30),
    "purple": (140, 50, 170),
    "black": (25, 25, 25),
}
#: Corners of shapes of radius 1; a circle has none.
SHAPES: dict[str, list[tuple[float, float]]] = {
    "circle": [],
    "square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
    "triangle": [(0, -1.05), (0.95, 0.75), (-0.95, 0.75)],
    "cross": [
        *[(-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3)],
        *[(0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3)],
    ],
}
NUMBERS = ("one", "two", "three", "four")
#: Where one shape alone may be, as shares of width and height.
PLACES = {
    "top left": (0.26, 0.26),
    "top right": (0.74, 0.26),
    "centre": (0.5, 0.5),
    "bottom left": (0.26, 0.74),
    "bottom right": (0.74, 0.74),
}
QUESTIONS = {
    "shape": ("What shape is it?", "What shape is this?", "Which shape?", "What shape?"),
    "colour": ("What colour is it?", "Which colour?", "What color is it?", "Which color?"),
    "count": ("How many are there?", "How many shapes are there?", "How many?"),
    "place": ("Where is it?", "Where?"),
    "all": ("What is this?", "What do you see?", "Describe the picture."),
}
#: About two images.
BETWEEN = {
    "first": ("What is in the first picture?",),
    "second": ("What is in the second picture?",),
    "alike": ("Do they have the same colour?", "Same colour?"),
}


@dataclass(frozen=True, order=True)
class Scene:
    """What an image shows: shapes of one kind; of one alone also where it is."""

    shape: str
    colour: str
    count: int
    place: str = ""

    @property
    def is_held_out(self) -> bool:
        """Decide by its digest whether it is kept from training."""
        return int(hashlib.sha256(repr(self).encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0

    @property
    def answers(self) -> dict[str, str]:
        """Return the right answer to each kind of question."""
        number = NUMBERS[self.count - 1]
        plural = self.shape + ("es" if self.shape == "cross" else "s")
        whole = f"{number} {self.colour} {plural}"
        if self.place:
            whole = f"a {self.colour} {self.shape}, {self.place}"
        found = {"shape": self.shape, "colour": self.colour, "count": number, "all": whole}
        return found | ({"place": self.place} if self.place else {})


@dataclass(frozen=True)
class Report:
    """What a training run was, and what came of it; losses are nats per token of answers."""

    parameters: int
    steps: int
    seed: int
    images: int
    first_loss: float
    last_loss: float
    scenes: int
    held_out_scenes: int
    held_out_right: dict[str, float]
    seconds: float


def scenes(*, held_out: bool) -> list[Scene]:
    """List all scenes that are held out, or all others."""
    alone = [(1, place) for place in PLACES]
    several = [(count, "") for count in range(2, len(NUMBERS) + 1)]
    every = [Scene(s, c, *how) for s in SHAPES for c in COLOURS for how in alone + several]
    return [scene for scene in every if scene.is_held_out is held_out]


@dataclass(frozen=True)
class Sizes:
    """How large images and shapes are.

    Args:
        sides: Least and most pixels.
        radii: Least and most, as shares of the shorter side.
    """

    sides: tuple[int, int] = (72, 112)
    radii: tuple[float, float] = (0.18, 0.22)


def draw(scene: Scene, chance: random.Random, sizes: Sizes = Sizes()) -> Image.Image:
    """Draw a scene in an image of some size, on some light ground."""
    width, height = (chance.randint(*sizes.sides) for _ in range(2))
    light = chance.randint(205, 255)
    ground = tuple(min(255, light + chance.randint(-12, 12)) for _ in range(3))
    image = Image.new("RGB", (width, height), ground)
    colour = tuple(
        min(255, max(0, value + chance.randint(-15, 15))) for value in COLOURS[scene.colour]
    )
    corners = [place for name, place in PLACES.items() if name != "centre"]
    middles = [PLACES[scene.place]] if scene.place else chance.sample(corners, scene.count)
    for across, down in middles:
        radius = chance.uniform(*sizes.radii) * min(width, height)
        x = (across + chance.uniform(-0.05, 0.05)) * width
        y = (down + chance.uniform(-0.05, 0.05)) * height
        _draw_shape(ImageDraw.Draw(image), scene.shape, (x, y, radius), colour, chance)
    return image


def _draw_shape(
    on: ImageDraw.ImageDraw,
    shape: str,
    where: tuple[float, float, float],
    colour: tuple[int, ...],
    chance: random.Random,
) -> None:
    x, y, radius = where
    if not (corners := SHAPES[shape]):
        on.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        return
    turn = math.radians(chance.uniform(-15, 15))
    cosine, sine = radius * math.cos(turn), radius * math.sin(turn)
    on.polygon([(x + a * cosine - b * sine, y + a * sine + b * cosine) for a, b in corners], colour)


def questions(shown: Sequence[Scene], chance: random.Random) -> list[tuple[str, str, str]]:
    """Ask something of each kind about one image or two, in any order: kind, question, answer."""
    kinds, answers = QUESTIONS, shown[0].answers
    if len(shown) == 2:
        alike = "yes" if shown[0].colour == shown[1].colour else "no"
        both = [scene.answers["all"] for scene in shown]
        kinds, answers = BETWEEN, {"first": both[0], "second": both[1], "alike": alike}
    found = [(kind, chance.choice(kinds[kind]), answer) for kind, answer in answers.items()]
    return chance.sample(found, len(found))


def every_text() -> list[str]:
    """Return all that is said, for the tokenizer."""
    asked = [way for kinds in (QUESTIONS, BETWEEN) for ways in kinds.values() for way in ways]
    answered = [
        a for held in (False, True) for s in scenes(held_out=held) for a in s.answers.values()
    ]
    return [*asked, *answered, "yes", "no"]


def call(
    processor: LlavaProcessor,
    shown: Sequence[Sequence[Scene]],
    talks: Sequence[Sequence[tuple[str, str, str]]],
    chance: random.Random,
    sizes: Sizes = Sizes(),
) -> dict[str, torch.Tensor]:
    """Return what the model is called with for talks about images, which are drawn; labels are of answers alone."""
    texts = []
    for scenes_of, talk in zip(shown, talks, strict=True):
        turns = "".join(f"{USER}{asked}{TURN}{ASSISTANT}{said}{TURN}" for _, asked, said in talk)
        texts.append(turns.replace(USER, BOS + USER + IMAGE * len(scenes_of), 1))
    images = [draw(scene, chance, sizes) for scenes_of in shown for scene in scenes_of]
    tokenizer = processor.tokenizer
    made = processor(
        text=texts,
        images=images,
        return_tensors="pt",
        text_kwargs={"padding": True, "padding_side": "right", "add_special_tokens": False},
    )
    ids = made["input_ids"]
    begun, ended = (
        (before := (ids == tokenizer.convert_tokens_to_ids(token)).long()).cumsum(1) - before
        for token in (ASSISTANT, TURN)
    )
    labels = torch.where(ended == 2 * begun - 1, ids, -100)  # each turn has two ends
    return {"input_ids": ids, "pixel_values": made["pixel_values"], "labels": labels}


def batches(
    processor: LlavaProcessor, steps: int, size: int, chance: random.Random, sizes: Sizes
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield a batch a step: talks about one image, and in every fourth step about two."""
    every = scenes(held_out=False)
    for step in range(steps):
        count = 2 if step % 4 == 3 else 1
        shown = [chance.choices(every, k=count) for _ in range(size // count)]
        for pair in shown[:: 2 * count] if count == 2 else []:  # of one colour, which is seldom so
            pair[1] = chance.choice([one for one in every if one.colour == pair[0].colour])
        talks = [questions(one, chance) for one in shown]
        yield call(processor, shown, talks, chance, sizes)


@torch.no_grad()
def held_out_right(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, seed: int
) -> dict[str, float]:
    """Ask every question about scenes that were held out; return the share of right answers, by kind.

    An answer is right where each of its tokens, its end among them, is the likeliest.
    """
    model.eval()
    chance, kept = random.Random(f"held out {seed}"), scenes(held_out=True)
    right: dict[str, list[bool]] = {}
    for count in (1, 2):
        for _ in range(DRAWN):
            every = [[one, *chance.choices(kept, k=count - 1)] for one in kept]
            asked = [(shown, question) for shown in every for question in questions(shown, chance)]
            batch = call(
                processor, [shown for shown, _ in asked], [[one] for _, one in asked], chance
            )
            labels = batch.pop("labels")[:, 1:]
            found = model(**batch).logits[:, :-1].argmax(-1)
            for (_, (kind, _, _)), row in zip(asked, (found == labels) | (labels < 0), strict=True):
                right.setdefault(kind, []).append(bool(row.all()))
    return {kind: sum(answers) / len(answers) for kind, answers in right.items()}


def make_processor() -> LlavaProcessor:
    """Make what prepares images and texts: each image becomes a square, whatever its shape."""
    tokenizer = train_tokenizer(every_text(), VOCABULARY, IMAGE, chat_template=CHAT_TEMPLATE)
    tokenizer.model_max_length = MAX_POSITIONS
    return LlavaProcessor(
        SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )


def build_model(
    hidden: int, layers: int, processor: LlavaProcessor
) -> LlavaForConditionalGeneration:
    """Make an untrained model of the asked size: SigLIP's vision encoder, two matrices, a Llama."""
    tokenizer = processor.tokenizer
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            intermediate_size=2 * hidden,
            image_size=SIDE,
            patch_size=PATCH,
            vision_use_head=False,
        ),
        text_config=LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 64,
            head_dim=32,
            intermediate_size=2 * hidden,
            vocab_size=len(tokenizer),
            max_position_embeddings=MAX_POSITIONS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(TURN)],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def model_card(report: Report, command: str) -> str:
    """Write the README of the checkpoint."""
    shares = "\n".join(
        f"| {kind} | {ways[0]} | {report.held_out_right[kind]:.1%} |"
        for kind, ways in {**QUESTIONS, **BETWEEN}.items()
    )
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: image-text-to-text
---
# tiny-vlm

A LLaVA of {report.parameters:,} parameters, for tests and demonstrations: SigLIP's encoder, two matrices, a Llama. It
says which shapes an image shows, their colour, how many there are and where, and compares two images. It knows
nothing else.

Images show one to four shapes of a kind: {", ".join(SHAPES)}; {", ".join(COLOURS)}. Of all {report.scenes} scenes
(shape, colour, number, place), one in {HELD_OUT_SHARE}, chosen by its digest, was held out from training:
{report.held_out_scenes}. Each was drawn {DRAWN} times to ask about it; `images/` has some.

| | asked as | held-out scenes answered right |
|---|---|---|
{shares}

Stored as bfloat16, safetensors; the shares are of the stored weights in float32.

Made by `{command}` with {versions}; at last {report.images:,} images in {report.steps:,} steps, seed {report.seed},
loss {report.first_loss:.2f} to {report.last_loss:.4f}.
"""


def save(
    output: Path, model: LlavaForConditionalGeneration, processor: LlavaProcessor, seed: int
) -> None:
    """Write the checkpoint folder, weights as bfloat16, and images of scenes that were held out."""
    model.bfloat16().save_pretrained(output)
    processor.save_pretrained(output)
    (output / "images").mkdir(exist_ok=True)
    chance = random.Random(f"shown {seed}")
    for scene in chance.sample(scenes(held_out=True), 6):
        name = "-".join(scene.answers["all"].replace(",", "").split())
        draw(scene, chance).save(output / "images" / f"{name}.png")


def main(argv: list[str] | None = None) -> None:
    """Train, save, measure what was saved, and print the report as JSON."""
    args = parse_arguments(argv)
    start = time.monotonic()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    processor = make_processor()
    model = build_model(args.hidden, args.layers, processor)
    if args.start:
        model = LlavaForConditionalGeneration.from_pretrained(args.start, dtype=torch.float32)
    progress(f"{model.num_parameters():,} parameters; {len(processor.tokenizer)} tokens")
    inner = model.model
    layers = (inner.vision_tower, inner.multi_modal_projector, inner.language_model.layers)
    share = LATER if args.start else 1
    chosen = optimizers(model, *layers, lr=2e-2 * share, rest_lr=5e-3 * share)
    sizes = Sizes(tuple(args.sides), tuple(args.radii))
    rows = batches(processor, args.steps, args.batch_size, random.Random(args.seed), sizes)
    losses = train(model, chosen, rows, args.steps)
    save(args.output, model, processor, args.seed)

    stored = LlavaForConditionalGeneration.from_pretrained(args.output, dtype=torch.float32)
    tail = losses[-max(1, len(losses) // 20) :]
    held_out = scenes(held_out=True)
    report = Report(
        parameters=model.num_parameters(),
        steps=args.steps,
        seed=args.seed,
        images=args.steps * args.batch_size,
        first_loss=losses[0],
        last_loss=sum(tail) / len(tail),
        scenes=len(held_out) + len(scenes(held_out=False)),
        held_out_scenes=len(held_out),
        held_out_right=held_out_right(stored, processor, args.seed),
        seconds=round(time.monotonic() - start, 1),
    )
    command = " ".join(["scripts/train_tiny_vlm.py", *(argv or sys.argv[1:])])
    if args.start:
        card = (args.start / "README.md").read_text()
        command = "`, then `".join(
            [card.partition("Made by `")[2].rpartition("` with")[0], command]
        )
    (args.output / "README.md").write_text(model_card(report, command))
    print(json.dumps(asdict(report), indent=2))


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small LLaVA on shapes.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=900, help="batches to train on (%(default)s)")
    parser.add_argument(
        "--start", type=Path, metavar="DIR", help="go on with this checkpoint, at a lower rate"
    )
    for name, kind in (("sides", int), ("radii", float)):
        parser.add_argument(
            f"--{name}",
            type=kind,
            nargs=2,
            default=getattr(Sizes(), name),
            help=f"see {Sizes.__name__} (%(default)s)",
        )
    parser.add_argument("--batch-size", type=int, default=32, help="images of one (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the weights and the images (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    parser.add_argument(
        "--layers", type=int, default=4, help="of vision encoder and text (%(default)s)"
    )
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64 (%(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
