# SPDX-License-Identifier: Apache-2.0
"""`run` of packages whose prompts have images, videos or recordings: one prompt and its files in, text out."""

from typing import Any

from qeff_zoo.tasks.encoders.verbs import EmbedTexts, print_embeddings
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.text_generation.verbs import Generate, require_one_prompt


class EmbedWithMedia(EmbedTexts):
    """Embeds prompts, or one prompt with images, and compares them with one another."""

    def __call__(self, session: Any) -> None:
        """Embed and print."""
        given = self.arguments
        images = fetch_each(given.image) if given.image else []
        if images:
            require_one_prompt(self.prompts, "--image belongs")
        embeddings = session.embed(
            self.prompts, images=[images] * bool(images), chat=given.chat, adapter=given.adapter
        )
        print_embeddings(session, "text", self.prompts, embeddings, as_json=given.json)


class GenerateWithMedia(Generate):
    """Generates text for prompts, or for one prompt with images, videos or recordings."""

    def check(self) -> None:
        """Refuse several prompts for the same files."""
        files = self.arguments
        if files.image or files.video or files.audio:
            flag = "--image" if files.image else "--video" if files.video else ""
            require_one_prompt(self.prompts, f"{flag} belongs" if flag else "recordings belong")

    def more(self) -> dict[str, Any]:
        """Return the files of the prompt."""
        files = self.arguments
        return {
            **({"images": [fetch_each(files.image)]} if files.image else {}),
            **({"videos": [fetch_each(files.video, "video")]} if files.video else {}),
            **({"audio": [files.audio]} if files.audio else {}),
        }
