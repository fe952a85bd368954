# SPDX-License-Identifier: Apache-2.0
"""A vision program at work: a picture in, as a processor prepares it, its rows of features out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.runtime.feature_cache import Reader
from qeff_zoo.runtime.image_prompt_templates import LAYOUTS, OF_VIDEO
from qeff_zoo.runtime.multimodal_spans import CrossAttentionImage, Encoded, RawImage
from qeff_zoo.runtime.patch_positions import Tower
from qeff_zoo.runtime.program import Array, Program, Tensor

if TYPE_CHECKING:
    from qeff_zoo.multimodal.images import Images

#: What a processor says of a picture that was cut into patches: time, height and width in patches.
GRID = "image_grid_thw"
#: How many of these are on a side of the square that becomes a row, where it says that of each picture.
MERGE = "image_merge_sizes"
#: What it says of a video beside that: how long each step of its time takes.
STEP_SECONDS = "second_per_grid_ts"


#: Begins the names of features in more rows than usual, which a program makes beside the others.
FINER = "finer."
#: How the names of pictures end, as programs are given them.
PIXELS = "pixel_values"
#: Frames of a video, where a program of their own reads them.
FRAMES = "pixel_values_videos"
#: Of patches of those: time, height and width, what is merged, and which rows are kept.
FILM_GRID, FILM_MERGE, KEPT = "video_grid_thw", "video_merge_sizes", "video_compression_mask"


class PassThroughEncoder(Reader):
    """Leaves pictures as a processor prepares them: the language program, which is given, reads them itself.

    Attributes:
        size: Rows of features that a picture becomes there.
    """

    kind = "pictures"
    size: int

    @property
    def needed(self) -> tuple[str, ...]:
        """As of `Reader`."""
        return tuple(name for name in self.program.inputs if name.endswith(PIXELS))[:1]

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> RawImage:
        inputs = self.program.inputs
        wanted = {name: one.shape for name, one in inputs.items() if name.endswith(PIXELS)}
        found = {name: np.asarray(prepared[name], np.float32) for name in wanted}
        for name, shape in wanted.items():
            if found[name].shape != shape:
                raise MediaError(
                    f"A picture was prepared as {name} {found[name].shape}; expected {shape}, which the package's one "
                    "program reads. Build it without --single-program, or process the picture otherwise."
                )
        grid = self.layout.grid(1, prepared, self._config)
        return RawImage(digest=digest, features=found, grid=grid, count=self.size)


class Vision(Reader):
    """Reads pictures: `pixel_values` as the program takes them, and of one in patches `image_grid_thw`, (1, 3).

    Args:
        program: Opened.
        config: config.json of the model.
        budget: Bytes of features that are kept.
        images: As the package's manifest declares it.
        tiles: What reads tiles of a picture, where those have another size; opened.
        frames: Opens what reads frames of videos, where that is another program.
    """

    kind = "pictures"

    def __init__(
        self,
        program: Program,
        config: Mapping[str, Any],
        budget: int,
        images: "Images",
        tiles: Program | None = None,
        frames: Callable[[], Program] | None = None,
    ) -> None:
        super().__init__(program, config, budget, LAYOUTS[images.layout])
        self.images = images
        self._tiles, self._open_frames = tiles, frames
        #: Of a program that takes patches: what their geometry depends on.
        self.tower = Tower.read(config, images) if images.patches else None
        #: The same of frames of videos, where those are merged otherwise.
        self._film_tower = (
            Tower.read(config, replace(images, merge=images.video_merge))
            if images.video_merge
            else None
        )
        self._pixels = images.pixels or PIXELS

    @property
    def has_frames(self) -> bool:
        """Whether there is a program that reads frames of videos alone."""
        return self._open_frames is not None

    @cached_property
    def _frames(self) -> Program:
        assert self._open_frames is not None  # or videos are refused
        return self._open_frames()

    @property
    def needed(self) -> tuple[str, ...]:
        """As of `Reader`."""
        return (self._pixels, FRAMES) if self.has_frames else (self._pixels,)

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        if FRAMES in prepared:
            if self._film_tower is not None:
                return self._look_at_step(digest, prepared, self._film_tower)
            return self._look_at_frames(digest, prepared[FRAMES])
        if self.images.crossing:
            return self._view(digest, prepared)
        if name := self.images.pooled:
            return self._look_at_crops(digest, name, prepared)
        pixels = np.asarray(prepared[self._pixels], np.float32)
        if self._tiles is not None:
            return self._look_at_two_sizes(digest, pixels, self._tiles, prepared)
        if self.images.towerless:
            found = self._run({PIXELS: pixels})
            grid = self.layout.grid(1, prepared, self._config)
            return Encoded(digest=digest, features=found, grid=grid)
        if self.tower is None:
            return self._look_at_tiles(digest, pixels, prepared)
        if self.tower.positions:
            told = self.tower.unpadded({**prepared, "pixel_values": pixels})
            frames, (width, height) = 1, (int(one) + 1 for one in told["position_ids"].max(0))
        elif self.tower.column:
            return self._look_at_column(digest, pixels, prepared)
        elif name := self.images.packed:
            return self._look_at_packed(digest, pixels, prepared[name].reshape(-1, 2), prepared)
        elif name := self.images.shapes:
            return self._look_at_shapes(digest, pixels, prepared[name].reshape(-1, 2), prepared)
        else:
            self._check_merge(prepared.get(MERGE), self.tower)
            frames, height, width = (int(size) for size in prepared[GRID].reshape(3))
            told = {
                "pixel_values": self.tower.ordered(pixels, (frames, height, width)),
                GRID: prepared[GRID],
                **self.tower.describe((frames, height, width)),
            }
        grid = frames, height // self.tower.merge, width // self.tower.merge
        times = self._times(frames, prepared)
        span = 0
        if times is not None and self.images.lasting:
            span = max(*grid[1:], int(times[-1]) + 1)
        return Encoded(digest=digest, features=self._run(told), grid=grid, times=times, span=span)

    def _shape(self, output: Tensor, told: Mapping[str, Array]) -> tuple[int, ...]:
        """As of `Reader`; a tower makes a row of each square of patches that it merges, others one of each patch."""
        if self.images.towerless:
            return len(told[PIXELS]), 1
        if self.tower is not None and PIXELS in told and len(output.shape) == 2:
            return len(told[PIXELS]) // self.tower.merge**2, 1
        return super()._shape(output, told)

    def _check_merge(self, found: Array | None, tower: Tower) -> None:
        if found is not None and (found != tower.merge).any():
            raise MediaError(
                f"Cannot read a picture whose patches are merged by {found.reshape(-1).tolist()}; expected "
                f"{tower.merge}, for which this package was built. Set `merge_size` in the processor's JSON."
            )

    def _times(self, steps: int, prepared: Mapping[str, Array]) -> Array | None:
        """Return the rotary positions of steps; nothing where they follow one another, as those of a picture."""
        usual = self.images.pace
        if not usual or STEP_SECONDS not in prepared:
            return None
        seconds = np.float32(prepared[STEP_SECONDS].reshape(()))
        order = np.arange(steps, dtype=np.float32)
        # float32, one product after the other, and cut off: so a model's own forward counts.
        if each_second := self._config.get("position_id_per_seconds"):
            times = order * seconds * np.float32(each_second)
        else:
            each_second = self._config["vision_config"].get("tokens_per_second", usual)
            times = order * (np.float32(each_second) * seconds)
        whole: Array = times.astype(np.int64)
        if self.images.fractions and (whole != times).any():
            raise MediaError(
                f"Cannot read a video whose steps take {seconds:g} s: with {each_second} rotary positions of each "
                f"second they lie at {times[:4].tolist()}. Expected whole ones. Process it with another `fps`."
            )
        same = not self.images.lasting and (whole == np.arange(steps)).all()
        return None if same else whole

    def _look_at_column(
        self, digest: bytes, pixels: Array, prepared: Mapping[str, Array]
    ) -> Encoded:
        """Read a picture that the processor may have padded, patch by patch."""
        assert self.tower is not None
        height, width = (int(side) for side in prepared["image_sizes"].reshape(2))
        patch = int(self.program.inputs["pixel_values"].shape[2])
        high, wide = height // patch, width // patch
        patches = self.tower.cut(pixels.reshape(-1, *pixels.shape[-2:])[:, :height, :width], patch)
        found = self._run(self.tower.in_column(patches, high, wide))
        rows = (high // self.tower.merge) * (wide // self.tower.merge)
        return Encoded(
            digest=digest,
            features={name: one[:rows] for name, one in found.items()},
            grid=self.layout.grid(1, prepared, self._config),
        )

    def _look_at_shapes(
        self, digest: bytes, pixels: Array, shapes: Array, prepared: Mapping[str, Array]
    ) -> Encoded:
        """Read tiles of any size one by one, each a sequence of patches, (tiles, patches, values), filled up."""
        assert self.tower is not None
        found = []
        for tile, (height, width) in zip(pixels, shapes.tolist(), strict=True):
            grid = 1, height, width
            patches = self.tower.ordered(tile[: height * width], grid)
            found.append(self._run({"pixel_values": patches, **self.tower.describe(grid)}))
        features = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        grid = self.layout.grid(len(found), prepared, self._config)
        return Encoded(digest=digest, features=features, grid=grid)

    def _look_at_packed(
        self, digest: bytes, pixels: Array, shapes: Array, prepared: Mapping[str, Array]
    ) -> Encoded:
        """Read tiles of any size one by one, patches of which lie side by side, (1, channels, rows, columns of all)."""
        assert self.tower is not None
        found, begun = [], 0
        side = pixels.shape[2]
        every = pixels[0].reshape(len(pixels[0]), side, -1, side).transpose(2, 0, 1, 3)
        for height, width in shapes.tolist():
            grid = 1, height, width
            patches = self.tower.ordered(every[begun : begun + height * width], grid)
            found.append(self._run({"pixel_values": patches, **self.tower.describe(grid)}))
            begun += height * width
        features = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        grid = self.layout.grid(len(found), prepared, self._config)
        numbered = OF_VIDEO not in prepared  # frames have no numbers
        return Encoded(digest=digest, features=features, grid=grid, numbered=numbered)

    def _view(self, digest: bytes, prepared: Mapping[str, Array]) -> CrossAttentionImage:
        """Read all tiles of a picture together, which see one another."""
        kinds = {"pixel_values": np.float32}
        names = self.program.inputs
        told = {
            name: np.ascontiguousarray(prepared[name], kinds.get(name, np.int64)) for name in names
        }
        found = self._run(told)
        tiles = prepared[self.images.mask].reshape(-1) > 0
        features = {name: rows[0] for name, rows in found.items()}
        return CrossAttentionImage(digest=digest, features=features, tiles=tiles)

    def _look_at_crops(self, digest: bytes, pooled: str, prepared: Mapping[str, Array]) -> Encoded:
        """Read all crops of a picture together, since rows are made of patches of several."""
        pixels = np.ascontiguousarray(prepared["pixel_values"], np.float32)
        found = self._run({"pixel_values": pixels, pooled: prepared[pooled].astype(np.int64)})
        grid = self.layout.grid(len(pixels), prepared, self._config)
        return Encoded(digest=digest, features=found, grid=grid)

    def _look_at_tiles(
        self, digest: bytes, pixels: Array, prepared: Mapping[str, Array]
    ) -> Encoded:
        """Read tiles one by one: they do not see one another."""
        tiles: Sequence[Array] = [*pixels.reshape(-1, *pixels.shape[-3:])]
        name, shown = self.images.mask, self.program.inputs.keys() - {self._pixels}
        masks: dict[str, Array] = {}
        if (mask := prepared.get(name)) is not None and mask.ndim < 3:  # of tiles
            tiles = [one for one, there in zip(tiles, mask.reshape(-1), strict=True) if there]
        elif mask is not None:
            real = mask.reshape(-1, *mask.shape[-2:]) > 0
            if name in shown:
                masks[name] = real.astype(np.int64)
            else:
                sizes = zip(tiles, real.any(2).sum(1), real.any(1).sum(1), strict=True)
                tiles = [self._real(tile, height, width) for tile, height, width in sizes]
        elif self.images.sized:
            tiles = [self._real(tile, *tile.shape[1:]) for tile in tiles]
        # What else it is shown are the same tiles, in another size.
        others = {
            one: np.asarray(prepared[one], np.float32) for one in shown - masks.keys()
        } | masks
        told = [
            {self._pixels: tile[None], **{one: array[[at]] for one, array in others.items()}}
            for at, tile in enumerate(tiles)
        ]
        found = [self._as_fine(self._run(one), prepared) for one in told]
        features = {
            name: self.layout.arrange([tile[name] for tile in found], prepared, self._config)
            for name in found[0]
        }
        grid = self.layout.grid(len(tiles), prepared, self._config)
        return Encoded(digest=digest, features=features, grid=grid)

    def _real(self, tile: Array, height: int, width: int) -> Array:
        """Cut padding off a tile (channels, rows, columns), and what is no whole patch, as its tower does.

        Args:
            tile: As a processor makes it.
            height: Rows that are no padding.
            width: Columns that are no padding.
        """
        if self.images.sized:
            vision = self._config["vision_config"]
            unit = int(vision["patch_size"]) * int(self._config.get("spatial_merge_size", 1))
            more = 0
            if self.images.filled:  # a patch counts that padding covers in part
                more = unit - 1
                self._check_square(tile, int(vision["image_size"]))
            height, width = ((side + more) // unit * unit for side in (height, width))
        return tile[:, :height, :width]

    def _check_square(self, tile: Array, side: int) -> None:
        if tile.shape[1:] != (side, side):
            raise MediaError(
                f"An image was padded to {tile.shape[2]} x {tile.shape[1]} pixels; expected {side} x {side}, for which "
                "this package was built. Set that size in the processor's JSON."
            )

    def _look_at_frames(self, digest: bytes, pixels: Array) -> Encoded:
        """Read frames of a video, (1, frames, channels, height, width), one by one by the program for those."""
        frames = np.ascontiguousarray(pixels[0], np.float32)
        found = [self._run({PIXELS: one[None]}, self._frames) for one in frames]
        features = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        grid = len(frames), len(frames), 1
        return Encoded(digest=digest, features=features, grid=grid, of_video=True)

    def _look_at_step(self, digest: bytes, prepared: Mapping[str, Array], tower: Tower) -> Encoded:
        """Read the patches of one frame of a video, and keep the rows that its processor says."""
        self._check_merge(prepared.get(FILM_MERGE), tower)
        told = tower.describe(tuple(int(size) for size in prepared[FILM_GRID].reshape(3)))
        pixels = np.ascontiguousarray(prepared[FRAMES], np.float32)
        found = self._run({PIXELS: pixels, **told}, self._frames)
        kept = np.asarray(prepared[KEPT], bool)
        features = {name: one[kept] for name, one in found.items()}
        return Encoded(digest=digest, features=features, of_video=True)

    def _look_at_two_sizes(
        self, digest: bytes, pixels: Array, program: Program, prepared: Mapping[str, Array]
    ) -> Encoded:
        """Read a picture, and its tiles one by one, if there are any."""
        tiles = np.asarray(prepared.get(self.images.tiles, ()), np.float32)
        found = [self._run({PIXELS: pixels})]
        found += [self._run({PIXELS: np.ascontiguousarray(one[None])}, program) for one in tiles]
        features = {
            name: self.layout.arrange([one[name] for one in found], prepared, self._config)
            for name in found[0]
        }
        grid = self.layout.grid(len(found), prepared, self._config)
        return Encoded(digest=digest, features=features, grid=grid)

    def _as_fine(self, found: dict[str, Array], prepared: Mapping[str, Array]) -> dict[str, Array]:
        """Choose the rows of a tile as fine as a processor says."""
        wanted = next(iter(self.images.finer), "") in prepared
        finer = {name for name in found if name.startswith(FINER)}
        if wanted and not finer:
            raise MediaError(
                f"A picture was prepared with {self.images.finer[0]}, for more rows of each tile; expected none, "
                "since this model has no weights for that. Leave it out of what the processor is asked for."
            )
        chosen = finer if wanted else found.keys() - finer
        return {name.removeprefix(FINER): found[name] for name in found if name in chosen}
