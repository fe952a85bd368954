# SPDX-License-Identifier: Apache-2.0
"""Base of the audio encoders that recipes declare: values, and hooks that a family of models overrides.

Importing this module, or a family, imports neither numpy nor torch; a hook imports what it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qeff_zoo.recipe_media import Media

if TYPE_CHECKING:
    from qeff_zoo.media.features import Features
    from qeff_zoo.media.sound import Samples
    from qeff_zoo.multimodal.images import Images
    from qeff_zoo.runtime.audio_encoder import Hearing
    from qeff_zoo.tasks import Tracing


@dataclass(frozen=True, kw_only=True)
class Audio(Media, ABC):
    """Audio input of a language model.

    Attributes:
        features: Name of the features of a recording in the processor's output and in the forward's arguments.
        separate: Whether the reference computes one recording at a time, since the padding of the shorter of several
            recordings would change their features.
        taken_as: Modality whose arguments the forward takes encoded recordings by, if it takes none of audio.
        text_messages: Whether the chat template takes messages as texts, not as lists of parts.
        any_length: Name of recordings that the encoder reads at any length; nothing if programs of fixed shapes fit.
    """

    features: ClassVar[str] = "input_features"
    separate: ClassVar[bool] = False
    taken_as: ClassVar[str] = ""
    text_messages: ClassVar[bool] = False
    any_length: ClassVar[str] = ""

    token: str = "audio_token_id"

    @abstractmethod
    def trace(self, model: Any, images: "Images | None") -> "Tracing":
        """Describe how to trace the encoder.

        Args:
            model: From `loader.load_meta`.
            images: Image input of the same prompts, if the model has one.
        """

    @abstractmethod
    def encoder(self) -> "type[Hearing]":
        """Return the class that runs the program of the encoder."""

    @abstractmethod
    def prepare(
        self, features: "Features", shape: Sequence[int], samples: "Samples"
    ) -> dict[str, Any]:
        """Return the arrays of a recording, as transformers' processor returns them.

        Args:
            features: The feature extractor.
            shape: Shape of one window or block of the program's input.
            samples: Of one channel.

        Raises:
            MediaError: The recording is too long.
        """

    @abstractmethod
    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield random recordings without end, as `prepare` returns them, for validation.

        Args:
            shape: As of `prepare`.
        """
