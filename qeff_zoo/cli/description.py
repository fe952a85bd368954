# SPDX-License-Identifier: Apache-2.0
"""A package explained to a person, from its manifest and its generation settings.

In: a `Package`. Out: text.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qeff_zoo import targets
from qeff_zoo.checkpoint.draft_heads import ASSISTANT
from qeff_zoo.checkpoint.generation_settings import effective_of
from qeff_zoo.contract import TEXT2TEXT, TEXT_GENERATION, example, find
from qeff_zoo.errors import ZooError
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import Manifest, adapters_in, source_in
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.package.proof import sentences
from qeff_zoo.plan.generation import shown_settings
from qeff_zoo.terminal.printing import human_size
from qeff_zoo.terminal.sanitize import shown

_COMP_CTX_LENGTHS = "comp_ctx_lengths"


def describe(package: Package) -> str:
    """Describe a package: its content, its proof, and how to run it.

    Args:
        package: Any package.

    Returns:
        Several lines, without colours and without control characters of the manifest.
    """
    manifest = package.manifest
    title = f"{package.name}: {package.task} ({package.model_type}) for target {package.target}"
    sections = [
        title,
        _table([], _facts(package)),
        *(_shapes(program, manifest) for program in manifest["programs"]),
        "Programs\n"
        + "\n".join(_program(program, package.target) for program in manifest["programs"]),
        *filter(None, map(_matrices, package.programs)),
        "Choices\n" + _choices(manifest),
        _generation(package),
        f"Files, {human_size(package.size)}\n" + _table(["path", "role", "size"], _files(manifest)),
        _evidence(manifest),
        f"Run it\n  {_command(package)}",
    ]
    return shown("\n\n".join(filter(None, sections)) + "\n")


def _generation(package: Package) -> str:
    """Return the generation settings of a package's files; empty without any, or if a file is damaged or missing."""
    try:
        if not find(package.task).generates:
            return ""
        rows = [*shown_settings(effective_of(package.path)).items()]
    except (KeyError, ZooError):
        return ""
    return "Generation settings\n" + _table([], rows) if rows else ""


def _facts(package: Package) -> Iterator[Sequence[str]]:
    manifest = package.manifest
    weights, provenance = manifest["weights"], manifest["provenance"]
    stages = ", ".join(
        f"{stage} {seconds:.1f} s" for stage, seconds in provenance["seconds"].items()
    )
    peak = f"{human_size(provenance['peak_rss_bytes'])} of memory at most"
    needs = manifest["target"]["needs"]
    yield "path", str(package.path)
    yield "build key", package.build_key
    method = manifest["spec"].get("quantization", {}).get("method", "none")
    stored = f"{weights['storage']}{'' if method == 'none' else f' (the checkpoint: {method})'}"
    yield "weights", f"{stored}, {weights['tensors']} tensors"
    if left_out := weights.get("left_out"):
        parts = ", ".join(f"{name} ({count:,})" for name, count in left_out.items())
        yield "left out", f"tensors that no program reads: {parts}"
    for one in adapters_in(manifest):
        yield "adapter", f"merged: {adapter_named(one)}"
    if heads := source_in(manifest, "speculator"):
        kind = manifest["spec"]["task"]["speculator"]
        what = f"{kind['heads']} that draft" if "heads" in kind else "a layer that drafts"
        what = "a model that reads its states" if kind["kind"] == ASSISTANT else what
        yield "heads", f"{what} ({kind['kind']}): {_place(heads)}"
    for program in manifest["programs"]:
        yield "graph", f"opset {program['graph']['opset']}, {program['graph']['digest']}"
    if needs:
        yield "needs", ", ".join(f"{name} {version}".strip() for name, version in needs.items())
    known = package.target in targets.NAMES
    if known and (line := targets.find(package.target).describe_sidecars(manifest)):
        yield "elsewhere", line
    yield "license", manifest["license"] or "not stated by the source"
    dirty = ", from changed sources" if provenance.get("dirty") else ""
    yield "built", f"{provenance['finished']} by qeff-zoo {provenance['version']}{dirty}"
    yield "took", ", ".join(text for text in (stages, peak) if text)


def adapter_named(source: Mapping[str, Any]) -> str:
    """Describe the adapter that was merged into a package, from its manifest's spec: its source, and its weight."""
    return f"{_place(source)}, weight {source['weight']:g}"


def _place(source: Mapping[str, Any]) -> str:
    hub = f"{source['model_id']} at {source['revision']}, " if "model_id" in source else ""
    return f"{hub}{source['digest']}"


def _shapes(program: Mapping[str, Any], manifest: Manifest) -> str:
    specializations = program["specializations"]
    symbols = list(dict.fromkeys(key for entry in specializations for key in entry["symbols"]))
    rows = [
        [entry["name"], *(entry["symbols"].get(symbol, "") for symbol in symbols)]
        for entry in specializations
    ]
    title = "Shapes" if len(manifest["programs"]) == 1 else f"Shapes of {program['role']}"
    return f"{title}\n{_table(['name', *symbols], rows)}"


def _program(program: Mapping[str, Any], target: str) -> str:
    lines = [f"  {program['role']}: {program['path']}"]
    for kind in ("inputs", "outputs"):
        lines.append(f"    {kind}: {', '.join(map(_tensor, program[kind]))}")
    kinds = Counter(state["kind"] for state in program["states"])
    if kinds:
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines.append(f"    retained states: {counts}")
    words = targets.find(target).ways if target in targets.NAMES else {}
    for what, counts in program.get("ways", {}).items():
        ways = [f"{count} {words.get(code, code)}" for code, count in counts.items()]
        lines.append(f"    {what}: {'; '.join(ways)}")
    shaped = any(_COMP_CTX_LENGTHS in entry["symbols"] for entry in program["specializations"])
    if shaped and all(tensor["name"] != _COMP_CTX_LENGTHS for tensor in program["inputs"]):
        lines.append(
            f"    {_COMP_CTX_LENGTHS}: not needed, since attention reads only the tokens that are there"
        )
    return "\n".join(lines)


def _matrices(program: CompiledProgram) -> str:
    """Tabulate how matrices are stored that are no float32, and what they are computed with."""
    numerics, floats = program.numerics, program.numerics.activations
    alike = Counter((matrix.format, matrix.kept, matrix.multiplied) for matrix in numerics.matrices)
    rows = [
        [
            format.in_words,
            "as it is" if kept else "rounded",
            str(count),
            f"int8 and {floats}" if multiplied and numerics.int8_activations else floats,
        ]
        for (format, kept, multiplied), count in alike.most_common()
    ]
    columns = ["stored as", "of the checkpoint", "matrices", "computed in"]
    return f"Matrices, all others in floats\n{_table(columns, rows)}" if rows else ""


def _tensor(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']} {tensor['dtype']}[{', '.join(map(str, tensor['shape']))}]"


def _choices(manifest: Manifest) -> str:
    rows = [
        [field, _chosen(manifest["spec"], field), who] for field, who in manifest["why"].items()
    ]
    if not any(value for _, value, _ in rows):
        return _table(["field", "set by"], [[field, who] for field, _, who in rows])
    return _table(["field", "value", "set by"], rows)


def _chosen(spec: Mapping[str, Any], field: str) -> str:
    """Look a field of the plan up by its dotted name."""
    value: Any = spec
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):  # a source
        value = value.get("digest")
    text = "" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _files(manifest: Manifest) -> Iterator[Sequence[str]]:
    for file in manifest["files"]:
        yield file["path"], file["role"], human_size(file["size"])


def evidence(checks: Sequence[Mapping[str, Any]]) -> str:
    """Tabulate the checks of a validation, and what they compared with.

    Args:
        checks: Value of the manifest's `validation`; `model` in front if they are of several.
    """
    named = any("model" in check for check in checks)
    columns = ["level", "stage", "metric", "value", "required", "passed", "canary"]
    rows = [
        [
            *([check["model"]] if named else []),
            check["level"],
            check["stage"],
            check["metric"],
            _number(check["value"]),
            f"{check['op']} {_number(check['threshold'])} ({check['threshold_from']})",
            "yes" if check["passed"] else "NO",
            _canary(check.get("canary")),
        ]
        for check in checks
    ]
    against = dict.fromkeys(_reference(check["against"]) for check in checks)
    compared = "\n".join(f"  against {text}" for text in against)
    return f"{_table([*(['model'] if named else []), *columns], rows)}\n{compared}"


def _evidence(manifest: Manifest) -> str:
    if not manifest["validation"]:
        return "Validation: none. Nothing was compared with the Hugging Face model."
    lines = sentences(manifest["validation"], manifest.get("costs", {}))
    proved = "".join(f"  {sentence}\n" for sentence in lines)
    return f"Validated: {manifest['validated']}\n{proved}{evidence(manifest['validation'])}"


def _reference(against: Mapping[str, Any]) -> str:
    revision = f" at {against['revision']}" if against["revision"] else ""
    version = f"transformers {against['transformers']}"
    named = against.get("settings") or against.get("told", {})  # told: of older packages
    settings = "".join(f", {name} {value}" for name, value in named.items())
    return f"{against['reference']}{revision}, {against['dtype']}, {version}, unpatched{settings}"


def _canary(canary: Mapping[str, Any] | None) -> str:
    return f"{canary['mutation']}: detected at {_number(canary['value'])}" if canary else ""


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _command(package: Package) -> str:
    length = " --generation-len 64" if package.task in (TEXT_GENERATION, TEXT2TEXT) else ""
    return f"qeff-zoo run {shlex.quote(str(package.path))} {example(package.task)}{length}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from tabulate import tabulate  # of no use to who only opens packages

    text = tabulate(list(rows), list(columns), tablefmt="plain", disable_numparse=True)
    return "\n".join("  " + line for line in text.splitlines())
