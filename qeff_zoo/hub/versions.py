# SPDX-License-Identifier: Apache-2.0
"""Whether what is installed here runs a package: versions that it needs, and those that it was tested with.

In: an index entry's needs and tested versions. Out: what stands in the way, and what is not known.
"""

from collections.abc import Callable, Iterator, Mapping

#: From a tool's name to its version here, or None.
Installed = Callable[[str], str | None]


def obstacles(needs: Mapping[str, str], here: Installed) -> Iterator[tuple[str, str]]:
    """Return the tools whose installed version is not one that a package needs, and why that will not do.

    Args:
        needs: Version ranges by tool.
        here: Tells what is installed.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    for tool, wanted in needs.items():
        found = here(tool)
        try:
            if found is not None and not SpecifierSet(wanted).contains(found, prereleases=True):
                yield tool, f"{tool} is {found}, it needs {wanted}"
        except (InvalidSpecifier, InvalidVersion):
            yield tool, f"{tool} is {found}, and what it needs cannot be compared: {wanted}"


def doubts(needs: Mapping[str, str], tested: Mapping[str, str], here: Installed) -> Iterator[str]:
    """Return what is not known about running a package here.

    Args:
        needs: Version ranges by tool.
        tested: Versions that it was compiled and compared with.
        here: Tells what is installed.
    """
    for tool in dict.fromkeys([*needs, *tested]):
        found, known = here(tool), tested.get(tool)
        if found is None and tool in needs:
            wanted = f" {needs[tool]}" if needs[tool] else ""
            yield f"It needs {tool}{wanted}, which is not installed here, so that this was not checked."
        elif found is not None and known is not None and found != known.partition("+")[0]:
            yield f"It was tested with {tool} {known}, and {found} is installed."
