# SPDX-License-Identifier: Apache-2.0
"""Content of a manifest: the schema, and the rules that JSON Schema cannot state.

In: the bytes of a manifest.json. Out: its value, or every problem in it. Nothing here looks at the
files that a manifest lists; `qeff_zoo.package` does.
"""

import json
import operator
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.disk.relative_paths import unsafe_path
from qeff_zoo.package.identity import build_key, canonical, tree_digest
from qeff_zoo.package.programs import key_of
from qeff_zoo.package.schemas import violations
from qeff_zoo.terminal.sanitize import shortened

SCHEMA_ID = "qeff-package/2"
#: The JSON Schema of manifests.
SCHEMA = Path(__file__).with_name("package.schema.json")
MANIFEST_NAME = "manifest.json"
#: Lies in its place where a program is still to be compiled, see `qeff_zoo.package.prepared`.
PREPARED = "prepared.json"
#: Of a detached signature; lies beside the manifest, on disk and where packages are shared.
SIGNATURE_NAME = f"{MANIFEST_NAME}.sigstore"
MANIFEST_LIMIT = 64 << 20
#: What a package can be validated to, weakest first.
VALIDATED = ("none", "tiny", "emulated", "checkpoint", "simulated", "device", "task")

Manifest = Mapping[str, Any]

_HOLDS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<=": operator.le, ">=": operator.ge, "==": operator.eq}
)


_MOST_PROBLEMS = 100
# More than any package needs, and little enough to be checked in seconds.
_MOST_VALUES, _MOST_LEVELS, _LONGEST_TEXT, _LARGEST = 500_000, 32, 10_000, 1 << 63
_WITH, _LONGEST_NAME = " + ", 255
_DIGITS = 16  # of a source's digest


def parse(raw: bytes) -> dict[str, Any]:
    """Read JSON that every reader understands alike: no NaN, no duplicate keys, no lone surrogates.

    Args:
        raw: The bytes of a manifest.

    Raises:
        ValueError: The bytes are not such JSON, or not an object.
    """
    try:
        value = json.loads(raw, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        # Lone surrogates and 1e999 end here.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}, not an object")  # noqa: TRY004
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has one key twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dump(manifest: Manifest) -> bytes:
    """Write a manifest the way people and `diff` can read it."""
    return (json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def problems(manifest: Manifest) -> list[str]:
    """List all that is wrong with a manifest: the schema's problems, or else the broken rules.

    Args:
        manifest: Result of `parse`.

    Returns:
        One line each; those of rules begin with a stable id such as "QZ-M003".
    """
    if excess := _excess(manifest):
        return [excess]
    return _schema_problems(manifest) or broken_rules(manifest)


def _excess(manifest: Manifest) -> str | None:
    """Return what exceeds a manifest's limits, before anything but one look at each value."""
    level: list[Any] = [manifest]
    count = 0
    for _ in range(_MOST_LEVELS):
        count += len(level)
        if count > _MOST_VALUES:
            return f"it has more than {_MOST_VALUES:,} values"
        objects = [value for value in level if isinstance(value, Mapping)]
        lists = [value for value in level if isinstance(value, list | tuple)]
        for value in chain(level, *objects):
            if isinstance(value, str) and len(value) > _LONGEST_TEXT:
                return f"it has a text of {len(value):,} characters, more than {_LONGEST_TEXT:,}"
            if isinstance(value, int) and abs(value) >= _LARGEST:
                return "it has an integer of more than 64 bits"
        level = [*chain(*(value.values() for value in objects), *lists)]
        if not level:
            return None
    return "it is nested too deeply"


def _schema_problems(manifest: Manifest) -> list[str]:
    faults: list[str] = []
    error: Any
    for error in violations(SCHEMA, manifest):
        message = error.message
        if too_many := error.validator in ("maxItems", "maxProperties"):
            message = f"has {len(error.instance):,} entries, more than {error.validator_value:,}"
        faults.append(shortened(f"{error.json_path} {message}"))
        if too_many or len(faults) == _MOST_PROBLEMS:  # each entry may have problems of its own
            break
    return faults


def broken_rules(manifest: Manifest) -> list[str]:
    """List rules that a manifest breaks, 100 times at most, given that it satisfies the schema."""
    broken = (f"{name}: {text}" for name, rule in RULES.items() for text in rule(manifest))
    return [shortened(text) for text in islice(broken, _MOST_PROBLEMS)]


def holds(value: float | None, op: str, threshold: float) -> bool:
    """Compare a measurement with its threshold; None, which stands for NaN, never passes."""
    return value is not None and _HOLDS[op](value, threshold)


def source_in(manifest: Manifest, name: str = "model") -> Mapping[str, Any]:
    """Return a source checkpoint in a manifest's spec; empty without one.

    Args:
        manifest: Any.
        name: Name of the source.

    Returns:
        `weights` and `companions`, digests; of the Hub also `model_id` and `revision`.
    """
    sources = manifest["spec"].get("sources")
    source = sources.get(name) if isinstance(sources, Mapping) else None
    return source if isinstance(source, Mapping) else {}


def adapters_in(manifest: Manifest) -> list[Mapping[str, Any]]:
    """Return the merged adapters in a manifest's spec; see `Merged.source`."""
    sources = manifest["spec"].get("sources")
    adapters = sources.get("adapters") if isinstance(sources, Mapping) else None
    return (
        [adapter for adapter in adapters if isinstance(adapter, Mapping)]
        if isinstance(adapters, list)
        else []
    )


def adapter_axis(sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name merged adapters as packages are compared by: the beginnings of their digests, and weights other than 1.

    Args:
        sources: Sources of a spec; see `qeff_zoo.checkpoint.merging`.
    """
    return [
        digest_axis(source) + ("" if source["weight"] == 1 else f"={source['weight']:g}")
        for source in sources
    ]


def digest_axis(source: Mapping[str, Any]) -> str:
    """Name a source of a spec by the beginning of its digest."""
    digest: str = source["digest"]
    return digest.removeprefix("sha256:")[:_DIGITS]


def name_with(name: str, adapters: Sequence[str]) -> str:
    """Name a package by its checkpoint and its merged adapters, to distinguish it from the plain checkpoint."""
    return _WITH.join((name, *adapters))[:_LONGEST_NAME]


def base_name(manifest: Manifest) -> str:
    """Return the name of the checkpoint that a package was made from."""
    name: str = manifest["name"]
    return name.partition(_WITH)[0] if adapters_in(manifest) else name


def _build_key(manifest: Manifest) -> Iterator[str]:
    try:
        expected = build_key(manifest["spec"])
    except ValueError as error:
        yield f"spec has no identity: {error}"
        return
    if expected != manifest["build_key"]:
        yield f"build_key is {manifest['build_key']!r} but spec makes it {expected!r}"


def _program_key(manifest: Manifest) -> Iterator[str]:
    for program in manifest["programs"]:
        try:
            expected = key_of(program)
        except ValueError as error:
            yield f"compiled_from of program {program['role']!r} has no identity: {error}"
            continue
        if expected != program["program_key"]:
            origin = "graph and compiled_from make it"
            yield f"program_key of {program['role']!r} is {program['program_key']!r} but {origin} {expected!r}"


def _tree(manifest: Manifest) -> Iterator[str]:
    try:
        expected = tree_digest(manifest["files"])
    except ValueError as error:
        yield f"files have no digest: {error}"
        return
    if expected != manifest["tree"]:
        yield f"tree is {manifest['tree']!r} but files make it {expected!r}"


def _safe_paths(manifest: Manifest) -> Iterator[str]:
    for path in [entry["path"] for key in ("files", "programs") for entry in manifest[key]]:
        if reason := unsafe_path(path):
            yield f"path {path!r} {reason}"


def _distinct_paths(manifest: Manifest) -> Iterator[str]:
    taken = {_folded(MANIFEST_NAME): MANIFEST_NAME}
    for path in (file["path"] for file in manifest["files"]):
        other = taken.setdefault(_folded(path), path)
        if other is not path:
            yield f"{path!r} and {other!r} are one file where case does not count"
    for folded, path in taken.items():
        above = next((name for name in _folders(folded) if name in taken), None)
        if above is not None:
            yield f"{path!r} lies in {taken[above]!r}, which is a file"


def _reserved_names(manifest: Manifest) -> Iterator[str]:
    """Keep the names of the manifest, of its signature and of what they are written through first."""
    for path in (file["path"] for file in manifest["files"]):
        if _folded(path).removeprefix(".").startswith(MANIFEST_NAME):
            yield f"{path!r} is the name of the manifest, of its signature, or of a scratch file of either"


def _folders(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _program_files(manifest: Manifest) -> Iterator[str]:
    names = [file["path"] for file in manifest["files"]]
    known = {*names, *(folder for name in names for folder in _folders(name))}
    for program in manifest["programs"]:
        if program["path"] not in known:
            yield f"program {program['role']!r} is at {program['path']!r}, where no file is listed"


def _verdicts(manifest: Manifest) -> Iterator[str]:
    for index, check in enumerate(manifest["validation"]):
        numbers = f"{check['value']} {check['op']} {check['threshold']}"
        if check["passed"] is not holds(check["value"], check["op"], check["threshold"]):
            yield f"validation[{index}].passed is {check['passed']}, against its own {numbers}"


def _canaries(manifest: Manifest) -> Iterator[str]:
    for index, check in enumerate(manifest["validation"]):
        canary = check.get("canary")
        if canary and holds(canary["value"], check["op"], check["threshold"]):
            yield f"validation[{index}] lets its canary {canary['mutation']!r} pass: it cannot fail"


def _faults(manifest: Manifest) -> Iterator[str]:
    for index, check in enumerate(manifest["validation"]):
        for fault in check.get("faults", ()):
            if fault["noticed"] is holds(fault["value"], check["op"], check["threshold"]):
                yield f"validation[{index}] says of {fault['fault']!r} what its own numbers do not"


def _caught(manifest: Manifest) -> Iterator[str]:
    claimed = manifest["validated"]
    stages: dict[tuple[str, str], bool] = {}
    for check in manifest["validation"]:
        key = (check["level"], check["stage"])
        stages[key] = stages.get(key, False) or "canary" in check
    for (level, stage), caught in stages.items():
        if claimed != "none" and not caught:
            yield f"validated is {claimed!r} but no check of stage {stage!r} ({level}) was seen to catch a canary"


def _claim(manifest: Manifest) -> Iterator[str]:
    claimed = manifest["validated"]
    if claimed == "none":
        return
    if claimed not in {check["level"] for check in manifest["validation"]}:
        yield f"validated is {claimed!r} but no check ran at that level"
    if not all(check["passed"] for check in manifest["validation"]):
        yield f"validated is {claimed!r} but not every check passed"


def _revisions(manifest: Manifest) -> Iterator[str]:
    pinned = source_in(manifest).get("revision")
    for index, check in enumerate(manifest["validation"]):
        measured = check["against"]["revision"]
        if pinned and measured and measured != pinned:
            yield f"validation[{index}] measured revision {measured!r}, spec says {pinned!r}"


def _symbols(manifest: Manifest) -> Iterator[str]:
    for program in manifest["programs"]:
        known = {symbol for entry in program["specializations"] for symbol in entry["symbols"]}
        sizes = [(tensor["name"], tensor["shape"]) for tensor in program["inputs"]]
        sizes += [(state["name"], state["axes"]) for state in program["states"]]
        for name, axes in sizes:
            for size in axes:
                if isinstance(size, str) and size not in known:
                    yield f"input {name!r} has size {size!r}, set by no specialization"


def _canonical_spec(manifest: Manifest) -> Iterator[str]:
    spec = manifest["spec"]
    try:
        expected = canonical(spec)
    except ValueError:
        return  # QZ-M001 has said so
    if json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False) != (
        expected.decode()
    ):
        yield "spec is not in canonical form, so its key cannot be recomputed with jq"


def _specialization_names(manifest: Manifest) -> Iterator[str]:
    for program in manifest["programs"]:
        counts = Counter(entry["name"] for entry in program["specializations"])
        for name, count in counts.items():
            if count > 1:
                yield f"specialization {name!r} of {program['role']!r} is there {count} times"


def _roles(manifest: Manifest) -> Iterator[str]:
    counts = Counter(program["role"] for program in manifest["programs"])
    for role, count in counts.items():
        if count > 1:
            yield f"program {role!r} is there {count} times"


#: Stable ids: a rule may be dropped or added, its number never means another.
RULES: Mapping[str, Callable[[Manifest], Iterator[str]]] = MappingProxyType(
    {
        "QZ-M001": _build_key,
        "QZ-M002": _program_key,
        "QZ-M003": _tree,
        "QZ-M004": _safe_paths,
        "QZ-M005": _distinct_paths,
        "QZ-M006": _program_files,
        "QZ-M007": _verdicts,
        "QZ-M008": _canaries,
        "QZ-M009": _claim,
        "QZ-M010": _revisions,
        "QZ-M011": _symbols,
        "QZ-M012": _canonical_spec,
        "QZ-M013": _specialization_names,
        "QZ-M014": _roles,
        "QZ-M015": _caught,
        "QZ-M016": _reserved_names,
        "QZ-M017": _faults,
    }
)
