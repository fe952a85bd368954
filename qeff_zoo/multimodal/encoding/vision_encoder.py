# SPDX-License-Identifier: Apache-2.0
"""Vision encoder program at runtime: the output of an image processor in, image features out."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
from qeff_zoo.recipe_media import ImageEncoder
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.decoding.call_inputs import PIXELS
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, RawImage
from qeff_zoo.runtime.program import Array, Program, Tensor

#: Array of a processor with the grid of each image: time, height and width in patches.
GRID = "image_grid_thw"
#: Array of a processor with the merge size of each image, in patches on a side.
MERGE = "image_merge_sizes"
#: Array of a processor with the duration of each temporal step of a video.
STEP_SECONDS = "second_per_grid_ts"


#: Prefix of the outputs with finer image features.
FINER = "finer."
#: Frames of a video for a separate program.
FRAMES = "pixel_values_videos"
#: Name of `STEP_SECONDS` in processors of Qwen Omni.
OMNI_SECONDS = "video_second_per_grid"
#: Grid, merge size and kept image tokens of patches for a separate program of frames.
VIDEO_GRID, VIDEO_MERGE, KEPT = "video_grid_thw", "video_merge_sizes", "video_compression_mask"


class PassThroughEncoder(Reader):
    """Pass-through of an image processor's output to a language program that encodes images itself.

    Attributes:
        size: Number of image tokens of an image.
    """

    kind = "images"
    size: int

    @property
    def needed(self) -> tuple[str, ...]:
        """See `Reader`."""
        return tuple(name for name in self.program.inputs if name.endswith(PIXELS))[:1]

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> RawImage:
        inputs = self.program.inputs
        wanted = {name: array.shape for name, array in inputs.items() if name.endswith(PIXELS)}
        arrays = {name: np.asarray(prepared[name], np.float32) for name in wanted}
        for name, shape in wanted.items():
            if arrays[name].shape != shape:
                raise MediaError(
                    f"An image was prepared as {name} {arrays[name].shape}; expected {shape}, which the package's one "
                    "program reads. Build it without --single-program, or process the image otherwise."
                )
        grid = self.layout.grid(1, prepared, self._config)
        return RawImage(digest=digest, features=arrays, grid=grid, count=self.size)


class Vision(Reader):
    """Vision encoder for `pixel_values`, with `image_grid_thw` (1, 3) for images in patches.

    Args:
        program: Opened program.
        config: config.json of the model.
        budget: Maximum size of the feature cache in bytes.
        images: Image encoder of the package's manifest.
        tiles: Program of tiles, if these have another size than the whole image; opened.
        frames: A function that opens the program of video frames, if it is a separate one.
    """

    kind = "images"

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
        #: Geometry of patches, for a program that takes these.
        self.patch_geometry: PatchGeometry | None = images.geometry(config)
        #: Geometry of video frames with another merge size.
        self._frame_geometry: PatchGeometry | None = images.frame_geometry(config)

    @property
    def geometry(self) -> PatchGeometry:
        """Geometry of patches."""
        assert self.patch_geometry is not None
        return self.patch_geometry

    @property
    def has_frames(self) -> bool:
        """Whether there is a separate program of video frames."""
        return self._open_frames is not None

    @cached_property
    def _frames(self) -> Program:
        assert self._open_frames is not None  # or videos are rejected
        return self._open_frames()

    @property
    def needed(self) -> tuple[str, ...]:
        """See `Reader`."""
        pixels = self.images.pixels
        return (pixels, FRAMES) if self.has_frames else (pixels,)

    def run(self, inputs: Mapping[str, Array], program: Program | None = None) -> dict[str, Array]:
        """Run a program.

        Args:
            inputs: Arrays, some of which the program may not take.
            program: Program to run; the vision program by default.
        """
        return self._run(inputs, program)

    def arranged(
        self, digest: bytes, tiles: Sequence[Mapping[str, Array]], prepared: Mapping[str, Array]
    ) -> Encoded:
        """Return an image from the features of its tiles, in the order of its layout.

        Args:
            digest: Digest of the image.
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
        """Return an image from the features of its tiles, one after another; arguments as for `arranged`."""
        features = {name: np.concatenate([tile[name] for tile in tiles]) for name in tiles[0]}
        grid = self.layout.grid(len(tiles), prepared, self.config)
        return Encoded(digest=digest, features=features, grid=grid)

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        if FRAMES not in prepared:
            encoded: Encoded = self.images.encode(self, digest, prepared)
            return encoded
        if self._frame_geometry is not None:
            return self._look_at_step(digest, prepared, self._frame_geometry)
        return self._look_at_frames(digest, prepared[FRAMES])

    def _shape(self, output: Tensor, arguments: Mapping[str, Array]) -> tuple[int, ...]:
        """See `Reader`; some encoders return an image token for each patch or merged square."""
        rows = self.images.rows_of(self, arguments) if len(output.shape) == 2 else None
        return super()._shape(output, arguments) if rows is None else (rows, 1)

    def _look_at_frames(self, digest: bytes, pixels: Array) -> Encoded:
        """Return the features of video frames, (1, frames, channels, height, width), encoded one by one."""
        frames = np.ascontiguousarray(pixels[0], np.float32)
        outputs = [self._run({PIXELS: frame[None]}, self._frames) for frame in frames]
        features = {
            name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]
        }
        grid = len(frames), len(frames), 1
        return Encoded(digest=digest, features=features, grid=grid, of_video=True)

    def _look_at_step(
        self, digest: bytes, prepared: Mapping[str, Array], geometry: PatchGeometry
    ) -> Encoded:
        """Return the features of one video frame, reduced to the image tokens that its processor keeps."""
        check_merge(prepared.get(VIDEO_MERGE), geometry)
        arguments = geometry.describe(tuple(int(size) for size in prepared[VIDEO_GRID].reshape(3)))
        pixels = np.ascontiguousarray(prepared[FRAMES], np.float32)
        outputs = self._run({PIXELS: pixels, **arguments}, self._frames)
        kept = np.asarray(prepared[KEPT], bool)
        features = {name: output[kept] for name, output in outputs.items()}
        return Encoded(digest=digest, features=features, of_video=True)


def check_merge(merge: Array | None, geometry: PatchGeometry) -> None:
    """Check that a processor merged patches as the program does.

    Args:
        merge: Patches on a side of a merged square, of each image; None if the processor does not return them.
        geometry: Geometry of the program's patches.

    Raises:
        MediaError: If the merge sizes differ.
    """
    if merge is not None and (merge != geometry.merge).any():
        raise MediaError(
            f"Cannot read an image whose patches are merged by {merge.reshape(-1).tolist()}; expected "
            f"{geometry.merge}, for which this package was built. Set `merge_size` in the processor's JSON."
        )
