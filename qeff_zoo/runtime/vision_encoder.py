# SPDX-License-Identifier: Apache-2.0
"""A vision program at work: a picture in, as a processor prepares it, its rows of features out."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.recipe_media import ImageEncoder
from qeff_zoo.runtime.feature_cache import Reader
from qeff_zoo.runtime.multimodal_spans import Encoded, RawImage
from qeff_zoo.runtime.patch_positions import Tower
from qeff_zoo.runtime.program import Array, Program, Tensor

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
#: What processors of Qwen Omni call `STEP_SECONDS`.
OMNI_SECONDS = "video_second_per_grid"
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
        images: ImageEncoder,
        tiles: Program | None = None,
        frames: Callable[[], Program] | None = None,
    ) -> None:
        super().__init__(program, config, budget, images.prompt_layout)
        self.images, self.config = images, config
        self.tiles, self._open_frames = tiles, frames
        #: Geometry of patches, of a program that takes those.
        self.tower: Tower | None = images.geometry(config)
        #: The same of frames of videos, if those are merged otherwise.
        self._film_tower: Tower | None = images.frame_geometry(config)

    @property
    def geometry(self) -> Tower:
        """Geometry of patches."""
        assert self.tower is not None
        return self.tower

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
        pixels = self.images.pixels
        return (pixels, FRAMES) if self.has_frames else (pixels,)

    def run(self, inputs: Mapping[str, Array], program: Program | None = None) -> dict[str, Array]:
        """Run a program.

        Args:
            inputs: Arrays, some of which the program may not take.
            program: The vision program by default.
        """
        return self._run(inputs, program)

    def arranged(
        self, digest: bytes, tiles: Sequence[Mapping[str, Array]], prepared: Mapping[str, Array]
    ) -> Encoded:
        """Return an image of its tiles' features, in the order of its layout.

        Args:
            digest: Of the image.
            tiles: Features by name.
            prepared: Arrays of the processor.
        """
        features = {
            name: self.layout.arrange([tile[name] for tile in tiles], prepared, self.config)
            for name in tiles[0]
        }
        grid = self.layout.grid(len(tiles), prepared, self.config)
        return Encoded(digest=digest, features=features, grid=grid)

    def joined(
        self, digest: bytes, tiles: Sequence[Mapping[str, Array]], prepared: Mapping[str, Array]
    ) -> Encoded:
        """Return an image of its tiles' features, one after another; arguments as of `arranged`."""
        features = {name: np.concatenate([one[name] for one in tiles]) for name in tiles[0]}
        grid = self.layout.grid(len(tiles), prepared, self.config)
        return Encoded(digest=digest, features=features, grid=grid)

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        if FRAMES not in prepared:
            encoded: Encoded = self.images.encode(self, digest, prepared)
            return encoded
        if self._film_tower is not None:
            return self._look_at_step(digest, prepared, self._film_tower)
        return self._look_at_frames(digest, prepared[FRAMES])

    def _shape(self, output: Tensor, told: Mapping[str, Array]) -> tuple[int, ...]:
        """As of `Reader`; some encoders make a row of each patch or merged square."""
        rows = self.images.rows_of(self, told) if len(output.shape) == 2 else None
        return super()._shape(output, told) if rows is None else (rows, 1)

    def _look_at_frames(self, digest: bytes, pixels: Array) -> Encoded:
        """Read frames of a video, (1, frames, channels, height, width), one by one by the program for those."""
        frames = np.ascontiguousarray(pixels[0], np.float32)
        found = [self._run({PIXELS: one[None]}, self._frames) for one in frames]
        features = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        grid = len(frames), len(frames), 1
        return Encoded(digest=digest, features=features, grid=grid, of_video=True)

    def _look_at_step(self, digest: bytes, prepared: Mapping[str, Array], tower: Tower) -> Encoded:
        """Read the patches of one frame of a video, and keep the rows that its processor says."""
        check_merge(prepared.get(FILM_MERGE), tower)
        told = tower.describe(tuple(int(size) for size in prepared[FILM_GRID].reshape(3)))
        pixels = np.ascontiguousarray(prepared[FRAMES], np.float32)
        found = self._run({PIXELS: pixels, **told}, self._frames)
        kept = np.asarray(prepared[KEPT], bool)
        features = {name: one[kept] for name, one in found.items()}
        return Encoded(digest=digest, features=features, of_video=True)


def check_merge(found: Array | None, tower: Tower) -> None:
    """Refuse patches that a processor merged otherwise than the program.

    Args:
        found: Patches on a side of a merged square, of each image; None if the processor does not return them.
        tower: Geometry of the program's patches.

    Raises:
        MediaError: They differ.
    """
    if found is not None and (found != tower.merge).any():
        raise MediaError(
            f"Cannot read a picture whose patches are merged by {found.reshape(-1).tolist()}; expected "
            f"{tower.merge}, for which this package was built. Set `merge_size` in the processor's JSON."
        )
