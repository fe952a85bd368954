# SPDX-License-Identifier: Apache-2.0
"""Is a package right? It answers what Hugging Face's own model answers, and the distance is judged.

In: a package and its checkpoint. Out: a `Record` of checks that fail closed. The reference runs in
its own process and answers several times (see `qeff_zoo.reference`): right, right in other ways,
and wrong on purpose, which the checks must notice.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo import cases, sample_texts
from qeff_zoo.errors import ParityError
from qeff_zoo.package import Package
from qeff_zoo.parity import TOLERANCES, Array, Check, Judge, measure_floor, relative_errors
from qeff_zoo.rounding import Rounding, read_rounding
from qeff_zoo.runtime import EmbeddingSession, TextGenerationSession, open_session
from qeff_zoo.runtime.decoder import Decoder, Piece

#: Called after every step with 1; how many there will be is not known before.
Progress: TypeAlias = Callable[[int], None]

_GREEDY_PROMPT, _GREEDY_LENGTH = 16, 16
_TOP = 16  # logits of a position that are kept as evidence


@dataclass(frozen=True, kw_only=True)
class Record:
    """The evidence that a package is right, or is not.

    Args:
        level: Of the validation.
        checks: As in the manifest's `validation`.
        reported: What was measured without being judged: the noise floors, how far greedy answers agree.
        versions: Of what was compared.
        sequences: Token ids of what was run.
        arrays: What was answered: the largest logits, or whole embeddings.
    """

    level: str
    checks: list[Check]
    reported: Mapping[str, Any]
    versions: Mapping[str, str]
    sequences: list[list[int]] = field(repr=False)
    arrays: Mapping[str, Array] = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether every check did, and there were some."""
        return bool(self.checks) and all(check["passed"] for check in self.checks)

    @property
    def failures(self) -> list[str]:
        """One line for each check that failed."""
        return [
            f"{check['stage']}: {check['metric']} is {check['value']}, expected "
            f"{check['op']} {check['threshold']} (against {check['against']['dtype']})"
            for check in self.checks
            if not check["passed"]
        ]

    def save_evidence(self, folder: Path) -> Path:
        """Write the arrays to `evidence/validation.npz` of a package's folder."""
        path = folder / "evidence" / "validation.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, allow_pickle=False, **self.arrays)
        return path


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """What a package answered, and to what.

    Args:
        sequences: Token ids.
        positions: Of each sequence, those with an answer, ascending.
        keys: By stage: (sequence, index into its positions) of every answer.
        answers: By stage, (answers, vocab or hidden).
        greedy: Prompt and continuation.
    """

    sequences: list[list[int]]
    positions: list[list[int]]
    keys: Mapping[str, list[tuple[int, int]]]
    answers: Mapping[str, Array]
    greedy: tuple[list[int], list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """What the reference process returned: see `qeff_zoo.reference`."""

    about: Mapping[str, Any]
    arrays: Mapping[str, Array]

    def at(self, variant: str, keys: Sequence[tuple[int, int]]) -> Array:
        """Return a variant's answers to some questions."""
        return np.stack([self.arrays[f"{variant}.{number}"][index] for number, index in keys])

    def all(self, variant: str) -> Array:
        """Return all answers of a variant."""
        found = [name for name in self.arrays if name.startswith(f"{variant}.")]
        return np.concatenate([self.arrays[name] for name in found])

    def has(self, variant: str) -> bool:
        """Tell whether a variant was run."""
        return f"{variant}.0" in self.arrays


def validate(
    package: Package,
    checkpoint: Path,
    *,
    level: str = "checkpoint",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Record:
    """Compare a package with Hugging Face's model.

    Args:
        package: For target `ort`.
        checkpoint: Folder of the checkpoint that it was built from.
        level: "tiny" for a recipe's tiny model, "checkpoint" for real weights.
        threads: CPU threads of the package and of the reference; None for one per physical core.
        progress: Told of every step.

    Raises:
        ParityError: The reference does not run. A package that disagrees is no error: see `Record.passed`.

    Example:
        >>> record = validate(package, Path("examples/tiny-llama"))  # doctest: +SKIP
        >>> record.passed, record.failures  # doctest: +SKIP
        (True, [])
    """
    step = progress or (lambda steps: None)
    trial = _try(package, threads, step)
    rounding = read_rounding(package.file("graph"))
    request = {
        "checkpoint": str(checkpoint.absolute()),
        "task": package.task,
        "sequences": trial.sequences,
        "positions": trial.positions,
        "pooling": _chosen_pooling(package),
        "greedy": trial.greedy and {"prompt": trial.greedy[0], "length": len(trial.greedy[1])},
        **asdict(rounding),
    }
    reference = _ask(request, threads, step)
    judges = _judges(package, reference, rounding, level)
    return Record(
        level=level,
        checks=_judge(trial, reference, judges),
        reported=_report(trial, reference, judges),
        versions={
            "qeff_zoo": importlib.metadata.version("qeff-zoo"),
            "onnxruntime": importlib.metadata.version("onnxruntime"),
            **{name: reference.about[name] for name in ("torch", "transformers")},
        },
        sequences=trial.sequences,
        arrays=_evidence(trial, reference),
    )


def _try(package: Package, threads: int | None, step: Progress) -> _Trial:
    """Run the package; its memory is free again before the reference starts."""
    session = open_session(package, threads=threads)
    if isinstance(session, EmbeddingSession):
        return _try_encoder(session, step)
    return _try_decoder(session, step)


def _try_decoder(session: TextGenerationSession, step: Progress) -> _Trial:
    decoder = session.decoder
    stages = cases.decoder_stages(decoder.sizes)
    sequences = sample_texts.draw(
        cases.sequence_lengths(stages), session.tokenizer, decoder.vocab_size
    )
    ends: list[set[int]] = [set() for _ in sequences]
    for span in (span for stage in stages for call in stage.calls for span in call.spans):
        ends[span.sequence].add(span.stop - 1)
    positions = [sorted(found) for found in ends]
    keys: dict[str, list[tuple[int, int]]] = {}
    answers: dict[str, Array] = {}
    for stage in stages:
        spans = [span for call in stage.calls for span in call.spans]
        keys[stage.name] = [
            (span.sequence, positions[span.sequence].index(span.stop - 1)) for span in spans
        ]
        answers[stage.name] = np.stack(
            [row for call in stage.calls for row in _call(decoder, call, sequences, step)]
        )
    prompt = sequences[0][: min(_GREEDY_PROMPT, decoder.sizes.ctx_len - 1)]
    greedy = session.generate([prompt], generation_len=_GREEDY_LENGTH)[0].token_ids
    return _Trial(
        sequences=sequences,
        positions=positions,
        keys=keys,
        answers=answers,
        greedy=(prompt, greedy),
    )


def _call(
    decoder: Decoder, call: cases.Call, sequences: Sequence[Sequence[int]], step: Progress
) -> list[Array]:
    pieces = {
        span.row: Piece(sequences[span.sequence][span.start : span.stop], span.start)
        for span in call.spans
    }
    logits = decoder.prefill(pieces) if call.kind == "prefill" else decoder.decode(pieces)
    step(1)
    return [logits[span.row] for span in call.spans]


def _try_encoder(session: EmbeddingSession, step: Progress) -> _Trial:
    stages, lengths = cases.encoder_stages(session.sizes)
    sequences = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
    answers: dict[str, Array] = {}
    for stage in stages:
        found = []
        for call in stage.calls:
            rows = [sequences[number] for number in call.sequences]
            found.append(session.run(rows, call.seq_len))
            step(1)
        answers[stage.name] = np.concatenate(found)
    return _Trial(
        sequences=sequences,
        positions=[[0] for _ in sequences],
        keys={
            stage.name: [(number, 0) for call in stage.calls for number in call.sequences]
            for stage in stages
        },
        answers=answers,
    )


def _chosen_pooling(package: Package) -> dict[str, Any] | None:
    """Return a pooling that a user chose; any other the reference finds by itself."""
    task = package.manifest["spec"]["task"]
    by_user = package.manifest["why"].get("pooling", "").startswith("user")
    return {name: task[name] for name in ("pooling", "normalize")} if by_user else None


def _ask(request: Mapping[str, Any], threads: int | None, step: Progress) -> _Reference:
    """Run the reference process."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory(prefix="qeff-reference-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "qeff_zoo.reference"]
        command += [str(folder / "request.json"), str(folder / "answer.npz")]
        log = folder / "log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder
            ) as process,
        ):
            assert process.stdout is not None
            for _ in process.stdout:
                step(1)
        if process.returncode:
            raise _no_reference(request, log.read_text(encoding="utf-8", errors="replace"))
        with np.load(folder / "answer.npz", allow_pickle=False) as answer:
            arrays = dict(answer)
    about = json.loads(str(arrays.pop("about")))
    return _Reference(about=about, arrays=arrays)


def _no_reference(request: Mapping[str, Any], log: str) -> ParityError:
    last = (log.strip().splitlines() or ["it was killed"])[-1]
    return ParityError(
        f"The reference for {request['checkpoint']!r} does not run: {last} Expected transformers "
        "to load the checkpoint in float32 and run it. Free memory if it was killed, or build "
        "with --no-validate and validate on a larger machine."
    )


def _judges(
    package: Package, reference: _Reference, rounding: Rounding, level: str
) -> dict[str, Judge]:
    """Make a judge for each variant that the package is held against.

    A package of rounded weights is near Hugging Face's model as far as rounding lets it, and very
    near to the same model with the same weights rounded.
    """
    storage = str(package.manifest["weights"]["storage"])
    source = package.manifest["spec"]["source"]
    embeddings = package.task == "feature-extraction"
    described = {"reference": "float32"}
    if rounding.matrices:
        described["rounded"] = f"float32, weights rounded to {storage}"
    judges = {}
    for variant, dtype in described.items():
        others = [other for other in ("noise", "double") if reference.has(other)]
        pairs = [(reference.all(variant), reference.all(other)) for other in others]
        judges[variant] = Judge(
            level=level,
            tolerance=TOLERANCES[storage],
            floor=measure_floor(pairs, embeddings=embeddings),
            mutation=reference.about["mutation"],
            against={
                "reference": reference.about["class"],
                "revision": source.get("revision"),
                "transformers": reference.about["transformers"],
                "dtype": dtype,
                "patched": False,
            },
            embeddings=embeddings,
        )
    return judges


def _judge(trial: _Trial, reference: _Reference, judges: Mapping[str, Judge]) -> list[Check]:
    checks: list[Check] = []
    for stage, keys in trial.keys.items():
        canary = reference.at("canary", keys)
        found = [
            check
            for variant, judge in judges.items()
            for check in judge.judge(
                stage, reference.at(variant, keys), trial.answers[stage], canary
            )
        ]
        if not any("canary" in check for check in found):
            variant, judge = list(judges.items())[-1]
            found.append(judge.uncaught(stage, reference.at(variant, keys), canary))
        checks += found
    return checks


def _report(trial: _Trial, reference: _Reference, judges: Mapping[str, Judge]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "noise_floor": {judge.against["dtype"]: asdict(judge.floor) for judge in judges.values()}
    }
    if trial.greedy is not None:
        ours, theirs = trial.greedy[1], reference.about["greedy"]
        same = [left == right for left, right in zip(ours, theirs, strict=True)]
        matched = same.index(False) if False in same else len(same)
        report["greedy"] = {"generated": len(ours), "matched": matched}
    return report


def _evidence(trial: _Trial, reference: _Reference) -> dict[str, Array]:
    """Keep of every answer the largest values, ours and the reference's, and the distance."""
    arrays: dict[str, Array] = {}
    for stage, keys in trial.keys.items():
        got, expected = trial.answers[stage], reference.at("reference", keys)
        arrays[f"{stage}.positions"] = np.array(
            [(number, trial.positions[number][index]) for number, index in keys]
        )
        arrays[f"{stage}.relative_errors"] = relative_errors(expected, got)
        if trial.greedy is None:  # an embedding has no largest value
            arrays[f"{stage}.expected"], arrays[f"{stage}.got"] = expected, got
            continue
        top = np.argsort(-expected, axis=1, kind="stable")[:, :_TOP]
        arrays[f"{stage}.tokens"] = top
        arrays[f"{stage}.expected"] = np.take_along_axis(expected, top, axis=1)
        arrays[f"{stage}.got"] = np.take_along_axis(got, top, axis=1)
    return arrays
