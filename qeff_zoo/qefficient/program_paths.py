# SPDX-License-Identifier: Apache-2.0
"""What `compile` of a vision-language model returns: the folder of the package, with a path for each program."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff_zoo.package import Package

_VISION = "vision_qpc_path"
_LANGUAGE = ("lang_qpc_path", "lang_prefill_qpc_path", "lang_decode_qpc_path")


class ProgramPaths(str):
    """Folder of a package, and the paths of its programs by QEfficient's names.

    Example:
        >>> paths = model.compile(prefill_seq_len=128, ctx_len=1024)  # doctest: +SKIP
        >>> session = QAICInferenceSession(paths["vision_qpc_path"])  # doctest: +SKIP
    """

    _paths: Mapping[str, str] = MappingProxyType({})
    #: Sizes of images that `compile` was given, HEIGHTxWIDTH each.
    image_sizes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        folder: str,
        package: "Package | None",
        *,
        vision_alone: bool = False,
        image_sizes: Sequence[str] = (),
    ) -> "ProgramPaths":
        """Return the paths of a package.

        Args:
            folder: Folder of the package, or a prepared one.
            package: The package; None for a prepared folder, which stands for all its programs.
            vision_alone: Whether the text is the path of the vision encoder, and not the folder.
            image_sizes: Sizes of images that `compile` was given.
        """
        roles = (
            {} if package is None else {program.role: program.path for program in package.programs}
        )
        paths: dict[str, str] = dict.fromkeys(_LANGUAGE, folder)
        encoder = cls(folder if package is None else f"{folder}/{roles.get('vision', '')}")
        encoder.image_sizes = (*image_sizes,)
        if package is None or "vision" in roles:
            paths[_VISION] = encoder
        path = cls(paths.get(_VISION, folder) if vision_alone else folder)
        path._paths, path.image_sizes = paths, encoder.image_sizes
        return path

    def __getitem__(self, key: Any) -> str:
        return self._paths[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self._paths or (isinstance(key, str) and super().__contains__(key))

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the path of a program; a default if the package has none."""
        return self._paths.get(key, default)

    def keys(self) -> Iterator[str]:
        """Return QEfficient's names."""
        return iter(self._paths)

    def items(self) -> Iterator[tuple[str, str]]:
        """Return names and paths."""
        return iter(self._paths.items())
