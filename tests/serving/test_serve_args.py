# SPDX-License-Identifier: Apache-2.0
"""What vllm-qaic is told about a package of target `qaic`."""

import json
import shlex
from pathlib import Path
from typing import Any

import package_builder
import pytest
from package_builder import FILES, SOURCE, SPEC, draft, fill, made_from

from qeff_zoo import cli
from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package, write_manifest
from qeff_zoo.targets.qaic.serve_args import Command, serve_args

STATE = package_builder.program()["states"][0]


def program(role: str, dtype: str = "mxint8", path: str = "") -> dict[str, Any]:
    """Describe a QPC."""
    return package_builder.program(
        role=role,
        path=path or f"qpc/{role}/programqpc.bin",
        states=[{**STATE, "dtype": dtype}],
        specializations=shapes(128, 1, slots=16),
    )


def shapes(
    *seq_lens: int, slots: int = 0, batch_size: int = 1, logits: int = 1
) -> list[dict[str, Any]]:
    """List specializations of a decoder, one for each sequence length; that of `logits` tokens returns so many."""
    common = {"ctx_len": "4096", **({"full_batch_size": str(slots)} if slots else {})}
    kept = {
        length: {"num_logits_to_keep": str(logits if length == logits else 1)}
        for length in seq_lens
    }
    return [
        {
            "name": f"seq-{length}",
            "symbols": {
                "seq_len": str(length),
                "batch_size": str(batch_size),
                **common,
                **(kept[length] if logits > 1 else {}),
            },
        }
        for length in seq_lens
    ]


def compiled(
    folder: Path,
    *programs: dict[str, Any],
    flags: dict[str, Any] | None = None,
    specializations: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Package:
    """Make a package of target `qaic`.

    Args:
        folder: Absent.
        programs: Of `program`.
        flags: Of the compiler.
        specializations: Of every program.
        changes: Fields of the manifest to set.
    """
    for entry in programs:
        entry["compiled_from"] = {**entry["compiled_from"], "flags": flags or {}}
        entry["specializations"] = specializations or entry["specializations"]
    paths = [entry["path"] for entry in programs]
    for path in (*FILES, *(p if p.endswith(".bin") else f"{p}/programqpc.bin" for p in paths)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    manifest = {
        "target": {"name": "qaic", "needs": {}},
        "weights": {"storage": "mxfp6", "tensors": 12},
        "programs": list(programs),
        **changes,
    }
    return write_manifest(folder, draft(**manifest), {})


def options(command: Command) -> dict[str, Any]:
    """Read a command's options: JSON as its value, a flag without a value as True."""
    words, found = list(command.arguments), {}
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            value = words.pop(0) if words and not words[0].startswith("--") else True
            found[word] = json.loads(value) if str(value).startswith("{") else value
    return found


def test_a_decoder_that_draws_tokens(tmp_path: Path) -> None:
    flags = {"include_sampler": True, "return_pdfs": True}
    for number, (more, most) in enumerate([({}, 512), ({"max_top_k_ids": 64}, 64)]):
        package = compiled(tmp_path / str(number), program("decoder"), flags={**flags, **more})
        (command,) = serve_args(package).commands
        assert options(command)["--additional-config"]["override_qaic_config"] == {
            "device_group": [0],
            "max_top_k_ids": most,
            "aic_include_sampler": 1,
            "aic_return_pdfs": 1,
        }


def test_a_decoder(tmp_path: Path) -> None:
    package = compiled(
        tmp_path / "package",
        program("decoder"),
        flags={"num_devices": 4, "num_cores": 16, "mxfp6_matmul": True},
    )
    needed = serve_args(package)
    folder = str(package.path / "qpc/decoder")
    assert needed.qpc_paths == {"lang_qpc_path": folder}
    (command,) = needed.commands
    assert command.environment == {"VLLM_QAIC_QPC_PATH": folder}
    assert command.arguments[:3] == ("vllm", "serve", str(package.path))
    assert options(command) == {
        "--served-model-name": "org/tiny",
        "--max-model-len": "4096",
        "--max-num-seqs": "16",
        "--long-prefill-token-threshold": "128",
        "--quantization": "mxfp6",
        "--kv-cache-dtype": "mxint8",
        "--additional-config": {
            "override_qaic_config": {"device_group": [0, 1, 2, 3], "num_cores": 16}
        },
    }


def test_flags_that_were_not_compiled_in(tmp_path: Path) -> None:
    package = compiled(
        tmp_path / "package",
        program("decoder", "float16", "qpc"),
        weights={"storage": "fp16", "tensors": 12},
        specializations=shapes(128, 32, 1),  # two widths of prompts: nothing is drafted
    )
    (command,) = serve_args(package).commands
    assert command.environment == {"VLLM_QAIC_QPC_PATH": str(package.path / "qpc")}
    found = options(command)
    assert not {"--quantization", "--kv-cache-dtype", "--speculative-config"} & found.keys()
    assert (found["--max-num-seqs"], found["--long-prefill-token-threshold"]) == ("1", "128")
    assert found["--additional-config"] == {"override_qaic_config": {"device_group": [0]}}


def test_batches_that_begin_together(tmp_path: Path) -> None:
    package = compiled(
        tmp_path / "package", program("decoder"), specializations=shapes(128, 1, batch_size=4)
    )
    with pytest.raises(PackageError, match=r"batches of 4 .*--full-batch-size 4"):
        serve_args(package)


def test_images_are_embedded_by_a_process_of_their_own(tmp_path: Path) -> None:
    vision = program("vision", "float16")
    package = compiled(tmp_path / "package", vision, program("language"), flags={"num_devices": 2})
    needed = serve_args(package)
    assert needed.qpc_paths == {
        "vision_qpc_path": str(package.path / "qpc/vision"),
        "lang_qpc_path": str(package.path / "qpc/language"),
    }
    embed, generate = needed.commands
    assert embed.environment == {"VLLM_QAIC_QPC_PATH": needed.qpc_paths["vision_qpc_path"]}
    assert generate.environment == {"VLLM_QAIC_QPC_PATH": needed.qpc_paths["lang_qpc_path"]}
    assert options(embed)["--runner"] == "pooling"
    assert options(generate)["--enable-mm-embeds"] is True
    groups = [
        options(command)["--additional-config"]["override_qaic_config"]["device_group"]
        for command in needed.commands
    ]
    assert groups == [[0, 1], [2, 3]]


def test_paths_that_vllm_qaic_would_part(tmp_path: Path) -> None:
    package = compiled(tmp_path / "a:b", program("vision_encoder"), program("decoder"))
    with pytest.raises(PackageError, match=r"has ':' in its path; expected none\. Move"):
        serve_args(package)


@pytest.mark.parametrize("vision", [False, True])
def test_prefill_and_decode_apart(vision: bool, tmp_path: Path) -> None:
    programs = [program("prefill"), program("decode")]
    programs += [program("vision_encoder")] if vision else []
    package = compiled(tmp_path / "package", *programs, flags={"num_devices": 2})
    needed = serve_args(package)
    assert needed.qpc_paths["lang_prefill_qpc_path"] == str(package.path / "qpc/prefill")
    assert needed.qpc_paths["lang_decode_qpc_path"] == str(package.path / "qpc/decode")
    (command,) = needed.commands
    assert command.environment == {}  # qaic_disagg refuses VLLM_QAIC_QPC_PATH
    assert command.arguments[:4] == ("python", "-m", "qaic_disagg", "--model")
    found = options(command)
    assert found["--max-model-len"] == "4096"
    assert (found["--prefill-max-num-seqs"], found["--decode-max-num-seqs"]) == ("1", "16")
    first = 2 if vision else 0
    assert found["--prefill-device-group"] == f"{first},{first + 1}"
    assert found["--decode-device-group"] == f"{first + 2},{first + 3}"
    assert found["--prefill-override-qaic-config"] == {
        "qpc_path": str(package.path / "qpc/prefill"),
        "prefill_seq_len": 128,
    }
    assert found["--decode-override-qaic-config"] == {
        "qpc_path": str(package.path / "qpc/decode"),
        "prefill_seq_len": 1,
    }
    assert ("--encode-port" in found) is vision


def test_drafts_of_a_second_model(tmp_path: Path) -> None:
    package = compiled(
        tmp_path / "package",
        program("target"),
        program("draft"),
        specializations=shapes(128, 4, 1, slots=4, logits=4),
        spec=made_from(SOURCE, draft={"model_id": "org/tinier"}),
    )
    (command,) = serve_args(package).commands
    assert command.environment == {
        "VLLM_QAIC_SPEC_TARGET_QPC_PATH": str(package.path / "qpc/target"),
        "VLLM_QAIC_SPEC_DRAFT_QPC_PATH": str(package.path / "qpc/draft"),
    }
    found = options(command)
    assert found["--speculative-config"] == {
        "method": "draft_model",
        "model": "org/tinier",
        "num_speculative_tokens": 3,
    }
    draft_config = found["--additional-config"]["draft_override_qaic_config"]
    assert draft_config == {"device_group": [0], "prefill_seq_len": 128}


@pytest.mark.parametrize(
    ("lengths", "spec"),
    [((128, 4), {}), ((128, 1), made_from(SOURCE, draft={"model_id": "org/tinier"}))],
)
def test_drafts_without_a_maker_or_a_checker(
    lengths: tuple[int, ...], spec: dict[str, Any], tmp_path: Path
) -> None:
    package = compiled(
        tmp_path / "package",
        *(program("decoder"), program("draft")),
        specializations=shapes(*lengths, slots=4),
        spec={**SPEC, **spec},
    )
    with pytest.raises(PackageError, match=r"has the draft model .* and checks"):
        serve_args(package)


def half(
    folder: Path, kind: str, source: dict[str, Any] = SOURCE, beside: tuple[str, ...] = ()
) -> Package:
    """Make a package for prompts alone, or for answers alone."""
    spec = made_from(source)
    spec["shape"][f"{kind}_only"] = True
    sizes = shapes(*((128,) if kind == "prefill" else (1,)), slots=16)
    programs = [program(role) for role in ("decoder", *beside)]
    return compiled(folder, *programs, specializations=sizes, spec=spec)


def test_packages_for_prompts_and_for_answers_are_served_together(tmp_path: Path) -> None:
    prefill, decode = half(tmp_path / "p", "prefill"), half(tmp_path / "d", "decode")
    found = serve_args(prefill, decode)
    assert found.qpc_paths == {
        "lang_prefill_qpc_path": str(prefill.path / "qpc/decoder"),
        "lang_decode_qpc_path": str(decode.path / "qpc/decoder"),
    }
    (command,) = found.commands
    requested = options(command)
    assert command.arguments[:3] == ("python", "-m", "qaic_disagg")
    assert (requested["--prefill-max-num-seqs"], requested["--decode-max-num-seqs"]) == ("1", "16")
    assert (requested["--prefill-device-group"], requested["--decode-device-group"]) == ("0", "1")
    assert requested["--prefill-override-qaic-config"]["prefill_seq_len"] == 128
    assert requested["--decode-override-qaic-config"]["prefill_seq_len"] == 1


def test_halves_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    prefill, decode = half(tmp_path / "p", "prefill"), half(tmp_path / "d", "decode")
    for pair in ((prefill,), (decode,), (decode, prefill), (prefill, prefill)):
        with pytest.raises(PackageError, match="serve-args PREFILL DECODE"):
            serve_args(*pair)
    other = half(tmp_path / "o", "decode", {**SOURCE, "weights": f"sha256:{'f' * 64}"})
    with pytest.raises(PackageError, match="is of another checkpoint than"):
        serve_args(prefill, other)
    seeing = half(tmp_path / "s", "prefill", beside=("vision",))
    with pytest.raises(PackageError, match="reads images beside its prompts"):
        serve_args(seeing, decode)


def test_drafts_from_the_text_itself(tmp_path: Path) -> None:
    package = compiled(
        tmp_path / "package",
        program("decoder"),
        specializations=shapes(128, 6, 1, slots=2, logits=6),
    )
    (command,) = serve_args(package).commands
    assert command.environment == {
        "VLLM_QAIC_SPEC_TARGET_QPC_PATH": str(package.path / "qpc/decoder")
    }
    drafts = {"method": "ngram", "num_speculative_tokens": 5}
    assert options(command)["--speculative-config"] == drafts


def encoder(folder: Path, task: str, *lengths: int) -> Package:
    symbols = [{"batch_size": "4", "seq_len": str(length), "ctx_len": "1"} for length in lengths]
    return compiled(
        folder,
        program("encoder", "float16"),
        task=task,
        spec={**SPEC, "task": {"name": task, "pooling": "cls"}},
        specializations=[{"name": f"E{n}", "symbols": symbol} for n, symbol in enumerate(symbols)],
    )


def test_encoders_pool_on_the_device(tmp_path: Path) -> None:
    (command,) = serve_args(encoder(tmp_path / "a", "feature-extraction", 32, 512)).commands
    found = options(command)
    assert found["--runner"] == "pooling"
    assert (found["--max-model-len"], found["--max-num-seqs"]) == ("512", "4")
    assert "--long-prefill-token-threshold" not in found
    config = found["--additional-config"]["override_qaic_config"]
    assert config == {
        "device_group": [0],
        "pooling_device": "qaic",
        "pooling_method": "cls",
        "embed_seq_len": [32, 512],
    }
    (command,) = serve_args(encoder(tmp_path / "b", "text-classification", 512)).commands
    config = options(command)["--additional-config"]["override_qaic_config"]
    assert config == {"device_group": [0], "pooling_device": "qaic", "task": "classify"}
    with pytest.raises(PackageError, match="is for token-classification, which vllm-qaic has no"):
        serve_args(encoder(tmp_path / "c", "token-classification", 512))


def test_programs_that_do_not_belong_together(tmp_path: Path) -> None:
    package = compiled(tmp_path / "package", program("prefill"))
    with pytest.raises(PackageError, match=r"has the programs prefill, which vllm-qaic does not"):
        serve_args(package)


def test_a_program_that_is_no_qpc(tmp_path: Path) -> None:
    package = compiled(tmp_path / "package", program("decoder", path="qpc/other.bin"))
    with pytest.raises(PackageError, match=r"has no programqpc\.bin for 'decoder' at 'qpc/other"):
        serve_args(package)


@pytest.mark.parametrize("devices", [0, -1, "four", None, 2.5])
def test_devices_that_are_no_number(devices: Any, tmp_path: Path) -> None:
    package = compiled(tmp_path / "package", program("decoder"), flags={"num_devices": devices})
    with pytest.raises(PackageError, match=r"was compiled for .* devices; expected a number"):
        serve_args(package)


def test_names_that_steer_a_terminal(tmp_path: Path) -> None:
    package = compiled(tmp_path / "package", program("decoder"), name="evil\x1b[2J\n")
    (command,) = serve_args(package).commands
    assert "--served-model-name" not in command.arguments
    assert str(command).isprintable()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = compiled(tmp_path / "a package", program("vision_encoder"), program("decoder"))
    needed = serve_args(package)
    assert cli.main(["serve-args", str(package.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, command in zip(lines, needed.commands, strict=True):
        ((name, value),) = command.environment.items()
        assert shlex.split(line) == [f"{name}={value}", *command.arguments]
    assert cli.main(["serve-args", str(package.path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["qpc_paths"] == needed.qpc_paths
    assert [tuple(command["arguments"]) for command in answer["commands"]] == [
        command.arguments for command in needed.commands
    ]


def test_who_compiled_a_qpc_makes_no_difference(tmp_path: Path) -> None:
    packages = [
        compiled(tmp_path / name, program("decoder"), target={"name": name, "needs": {}})
        for name in ("qaic", "qnn-aic")
    ]
    one, other = (serve_args(package).commands for package in packages)
    assert str(one).replace(str(packages[0].path), str(packages[1].path)) == str(other)


def test_packages_of_other_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = fill(tmp_path / "package")
    assert cli.main(["serve-args", str(package.path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "is for target 'ort'; expected 'qaic' or 'qnn-aic', which vllm-qaic serves." in err
    assert f"Run `qeff-zoo serve {package.path}`." in err
