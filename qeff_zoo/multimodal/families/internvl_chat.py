# SPDX-License-Identifier: Apache-2.0
"""Images of InternVL in OpenGVLab's own form."""

from dataclasses import dataclass

from qeff_zoo.multimodal.images import Images


@dataclass(frozen=True, kw_only=True)
class InternVLChat(Images):
    """Images that `<image>` marks in a prompt, in place of the placeholder token of transformers' form."""

    marker: str = "<image>"
