# SPDX-License-Identifier: Apache-2.0
"""Processor of Molmo's checkpoints, as far as the published code describes it: a text and an image in, arrays out.

Written for comparisons: crop by crop and token by token. A small checkpoint has a copy of this file as its code.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TOKENS = "<im_start>", "<im_end>", "<im_patch>", "<im_col>"


def canvas_of(image, height, width):
    """Return normalized pixels (height, width, 3) of an image between black bars, and where it is."""
    tall, wide = image.shape[:2]
    scale = min(np.float32(height) / np.float32(tall), np.float32(width) / np.float32(wide))
    tall, wide = (int(np.float32(one) * scale) for one in (tall, wide))
    pixels = torch.tensor(image).permute(2, 0, 1)[None] / 255
    inner = torch.nn.functional.interpolate(pixels, (tall, wide), mode="bilinear", antialias=True)
    top, left = (height - tall) // 2, (width - wide) // 2
    bars = (left, width - wide - left, top, height - tall - top)
    whole = torch.nn.functional.pad(inner.clamp(0, 1)[0], bars).permute(1, 2, 0).numpy()
    there = np.pad(np.ones((tall, wide), np.float32), (bars[2:], bars[:2]))
    return (whole - np.float32(MEAN)) / np.float32(STD), there


def patches_of(square, patch):
    """Return the patches of a square, line by line, each as one row of numbers."""
    corners = range(0, len(square), patch)
    return np.stack(
        [
            square[top : top + patch, left : left + patch].reshape(-1)
            for top in corners
            for left in corners
        ]
    )


def tiling_of(tall, wide, window, most):
    """Return the rows and columns of windows that enlarge an image least, or else shrink it least."""
    every = [
        pair
        for pair in itertools.product(range(1, most + 1), repeat=2)
        if pair[0] * pair[1] <= most
    ]
    every.sort(key=lambda pair: (pair[0] * pair[1], pair[0]))
    with np.errstate(divide="ignore"):
        scales = [
            min(np.float32(rows * window) / np.float32(tall), np.float32(columns * window) / np.float32(wide))
            for rows, columns in every
        ]  # fmt: skip
    enough = [scale for scale in scales if scale >= 1]
    return every[scales.index(min(enough) if enough else max(scales))]


class MolmoProcessor:
    """Tokens and crops of a text and an image."""

    def __init__(self, tokenizer, side=336, patch=14, most=12, margins=(4, 4)):
        self.tokenizer, self.side, self.patch, self.most = tokenizer, side, patch, most
        self.before, self.after = margins
        self.ids = dict(zip(TOKENS, tokenizer.convert_tokens_to_ids(list(TOKENS)), strict=True))

    @classmethod
    def from_pretrained(cls, folder, **_):
        """Return the processor of a checkpoint, whose config.json has the sizes of a small vision encoder."""
        vision = json.loads((Path(folder) / "config.json").read_text())["vision_config"]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(tokenizer, vision["image_size"][0], vision["patch_size"])

    @classmethod
    def register_for_auto_class(cls, *_):
        """Do nothing: transformers calls it for a class of a checkpoint's code."""

    def process(self, text, images=None):
        """Return the tensors of a text, and of an image before it."""
        tokens = self.tokenizer.encode(f" User: {text} Assistant:", add_special_tokens=False)
        begin = [self.tokenizer.bos_token_id or self.tokenizer.eos_token_id]
        if images is None:
            return {"input_ids": torch.tensor([*begin, *tokens])}
        (image,) = (np.asarray(one.convert("RGB")) for one in images)
        run, arrays = self.crops_of(image)
        places = arrays["image_input_idx"]
        arrays["image_input_idx"] = np.where(places < 0, places, places + len(begin))
        arrays["input_ids"] = np.array([*begin, *run, *tokens])
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def crops_of(self, image):
        """Return the tokens of an image, and its arrays."""
        side, patch, edges = self.side, self.patch, self.before + self.after
        count, pixels_of_edges = side // patch, edges * patch
        window = count - edges
        size = [length - pixels_of_edges for length in image.shape[:2]]
        rows, columns = tiling_of(*size, window * patch, self.most)
        sides = [length * window * patch + pixels_of_edges for length in (rows, columns)]
        canvas, there = canvas_of(image, *sides)
        whole, _ = canvas_of(image, side, side)
        crops, masks, half = [patches_of(whole, patch)], [], count // 2
        run, first = self._grid(half, half, 0)
        more, second = self._grid(sides[0] // patch // 2, sides[1] // patch // 2, len(run))
        places = [first.reshape(-1)]
        for row, column in itertools.product(range(rows), range(columns)):
            top, left = row * window * patch, column * window * patch
            crops.append(patches_of(canvas[top : top + side, left : left + side], patch))
            masks.append(patches_of(there[top : top + side, left : left + side], patch).mean(-1))
            recorded = np.full((half, half), -100)
            for down, right in itertools.product(range(half), range(half)):
                inner = [
                    (self.before <= 2 * at or not place) and (2 * at < count - self.after or place == last - 1)
                    for at, place, last in ((down, row, rows), (right, column, columns))
                ]  # fmt: skip
                if all(inner):
                    recorded[down, right] = second[
                        row * window // 2 + down, column * window // 2 + right
                    ]
            places.append(recorded.reshape(-1))
        masks.append(np.full_like(masks[0], -1))  # behind the others, and not first as the whole is
        return run + more, {
            "images": np.stack(crops),
            "image_masks": np.stack(masks),
            "image_input_idx": np.stack(places),
        }

    def _grid(self, rows, columns, start):
        """Return the tokens of a grid, and the places of its image tokens behind `start` others."""
        begin, end, patch, column = (self.ids[token] for token in TOKENS)
        run = [begin, *[*[patch] * columns, column] * rows, end]
        places = start + np.flatnonzero(np.array(run) == patch)
        return run, places.reshape(rows, columns)
