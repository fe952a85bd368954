# SPDX-License-Identifier: Apache-2.0
"""Table of the families of image and audio encoders: what each one encodes, and the recipes that declare it."""

import inspect

from documentation.tables import table
from qeff_zoo.multimodal.manifest import family_names, family_of
from qeff_zoo.registry import list_recipes


def families() -> str:
    """Return the table, families of images first, the most used first."""
    users: dict[type, list[str]] = {}
    for recipe in list_recipes():
        for media in (recipe.images, *recipe.vision_encoders.values(), recipe.audio):
            if media is not None and recipe.model_type not in users.setdefault(type(media), []):
                users[type(media)].append(recipe.model_type)
    known = [family_of(name) for name in family_names()]
    used = [family for family in known if family in users]
    used.sort(
        key=lambda family: (
            "audio" in family.__mro__[-3].__name__.lower(),
            -len(users[family]),
            family.__name__,
        )
    )
    rows = [
        [
            f"`{family.__name__}`",
            f"`{family.__module__.removeprefix('qeff_zoo.')}`",
            (inspect.getdoc(family) or "").splitlines()[0].rstrip("."),
            ", ".join(users[family][:4]) + (", …" if len(users[family]) > 4 else ""),
        ]
        for family in used
    ]
    return table(["family", "module", "input", "recipes"], rows)
