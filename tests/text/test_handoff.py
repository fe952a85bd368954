# SPDX-License-Identifier: Apache-2.0
"""Prompts that another process runs: the same answers, and answers all the same where it breaks off."""

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_handoff import serving, session_of, two_of
from fixtures_runtime import LENGTH, PROMPTS
from toy_decoder import ToyProgram

from qeff_zoo.errors import HandoffError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding.adapters import Loaded
from qeff_zoo.runtime.engine import disaggregated, wire
from qeff_zoo.runtime.engine.admission import greeting
from qeff_zoo.runtime.engine.disaggregated import Prefills


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "tcp"])
@pytest.mark.parametrize("name", ["toy", "growing", "window", "recurrent"])
def test_what_is_handed_over_goes_on_alike(
    name: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shared:
        monkeypatch.setattr(disaggregated, "_SHARED", tmp_path / "nowhere")
    first, second = two_of(name, tmp_path / "package")
    prompts = [[n % 11 + 1 for n in range(3, 3 + length)] for length in (21, 3, 14)]
    requests = [
        second.request(prompt, generation_len=6, sampling=Sampling(temperature=1.0, seed=7))
        for prompt in prompts
    ]
    wanted = [one.token_ids for one in second.generate(requests)]
    calls = []
    prefill = second.decoder.prefill
    monkeypatch.setattr(
        second.decoder, "prefill", lambda *a, **k: calls.append(a) or prefill(*a, **k)
    )
    with serving(first) as address, Engine(second, prefills=Prefills(second, [address])) as engine:
        found = [one.result(60).token_ids for one in engine.submit_together(requests)]
        assert engine.stats().handed_over == len(prompts)
    assert found == wanted
    assert not calls


def test_a_request_that_loses_its_row_is_computed_again(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    groups = [[[n % 7 + 1 for n in range(length)] for length in (9, 12, 20)], [[3, 1, 2] * 5]]
    wanted = [
        [one.token_ids for one in second.generate(group, generation_len=12)] for group in groups
    ]
    with serving(first) as address, Engine(second, prefills=Prefills(second, [address])) as engine:
        handles = [
            engine.submit_together([second.request(member, generation_len=12) for member in group])
            for group in groups
        ]
        assert [[member.result(60).token_ids for member in group] for group in handles] == wanted


def test_a_prompt_for_an_adapter_is_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_of("toy", tmp_path / "package")
    answer = second.answer

    def adapted(*given: Any) -> Any:
        made = answer(*given)
        made.adapter = Loaded("other", 0, b"files")
        return made

    wanted = second.generate([[1, 2, 3]], generation_len=4)[0].token_ids
    monkeypatch.setattr(second, "answer", adapted)
    with serving(first) as address, Engine(second, prefills=Prefills(second, [address])) as engine:
        assert (
            engine.submit(second.request([1, 2, 3], generation_len=4)).result(60).token_ids
            == wanted
        )
        assert engine.stats().handed_over == 0


def broken(listener: socket.socket, terms: dict[str, str]) -> None:
    """Answer as a server that ends in the middle of the states."""
    client, _ = listener.accept()
    with client:
        for _ in ("greeting", "prompt"):
            wire.receive(client)
        wire.send(
            client, {"version": disaggregated._VERSION, "terms": terms}, [np.zeros(5, np.float32)]
        )


def test_a_hand_over_that_is_cut_is_an_error_and_the_request_survives(tmp_path: Path) -> None:
    _, session = two_of("toy", tmp_path / "package")
    wanted = session.generate([[1, 2, 3, 4]], generation_len=5)[0].token_ids
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        prefills = Prefills(session, [address])
        cut = threading.Thread(target=broken, args=(listener, disaggregated.terms_of(session)))
        cut.start()
        with pytest.raises(
            HandoffError, match=r"broke off: \d+ bytes are missing; expected .* 4 tokens"
        ):
            prefills.run([1, 2, 3, 4])
        cut.join()
        again = threading.Thread(target=broken, args=(listener, disaggregated.terms_of(session)))
        again.start()
        with Engine(session, prefills=prefills) as engine:
            assert (
                engine.submit(session.request([1, 2, 3, 4], generation_len=5)).result(60).token_ids
                == wanted
            )
            stats = engine.stats()
        again.join()
    assert (stats.handed_over, stats.handoffs_failed) == (0, 1)


def test_an_engine_ends_while_a_server_does_not_answer(tmp_path: Path) -> None:
    _, session = two_of("toy", tmp_path / "package")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        engine = Engine(session, prefills=Prefills(session, [address, address]))
        handle = engine.submit([1, 2, 3])
        client, _ = silent.accept()
        with client:
            wire.receive(client)
            closing = threading.Thread(target=engine.close)
            closing.start()
            closing.join(20)
            assert not closing.is_alive()
            # Python waits for them before it ends.
            assert not [one for one in threading.enumerate() if "qeff-zoo prompts" in one.name]
    assert handle.result(0).finish_reason == "cancelled"


def test_the_next_server_is_used_after_one_disappears(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    with serving(first) as address:
        prefills = Prefills(second, [gone, address])
        for _ in range(2):
            assert prefills.run([1, 2, 3]).logits.shape == (second.decoder.vocab_size,)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"spec": {"sources": "b"}}, "model"),
        ({"programs": [{"numerics": {"matrices": [], "activations": "float16"}}]}, "precision"),
    ],
)
def test_states_of_something_else_are_refused(
    changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    first = session_of(tmp_path / "one", ToyProgram(1, 64, 8))
    other = session_of(tmp_path / "other", ToyProgram(1, 64, 8), **changes)
    with serving(first) as address, pytest.raises(HandoffError, match=f"another {what}"):
        Prefills(other, [address]).run([1, 2])


def test_another_layout_is_refused(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    second.decoder.program.memory["recurrent_state.1"] = np.zeros((2, 1), np.float32)
    with serving(first) as address, pytest.raises(HandoffError, match="another layout"):
        Prefills(second, [address]).run([1, 2])


def test_a_key_is_required(tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with serving(first, "secret") as address:
        with pytest.raises(HandoffError, match="another API key"):
            Prefills(second, [address], api_key="public").run([1])
        assert Prefills(second, [address], api_key="secret").run([1]).logits.size


@pytest.mark.parametrize("prompt", [[], [99], list(range(1, 12)) * 6, ["a"], "text"])
def test_a_prompt_that_cannot_be_run_is_refused_by_the_server(prompt: Any, tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with serving(first) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            requested = {
                "version": disaggregated._VERSION,
                "terms": disaggregated.terms_of(second),
                "prompt": prompt,
            }
            wire.send(client, greeting(None))
            wire.send(client, requested)
            assert "expected" in wire.receive(client)["error"]
        assert Prefills(second, [address]).run([1]).logits.size  # it goes on


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 7 + b"\3{x}", b"\0" * 7 + b"\2[]"]
)
def test_noise_does_no_harm(noise: bytes, tmp_path: Path) -> None:
    first, second = two_of("toy", tmp_path / "package")
    with serving(first) as address:
        host, _, port = address.rpartition(":")
        client = socket.create_connection((host, int(port)))
        with client, suppress(OSError):  # the server may have hung up by then
            client.sendall(noise)
            client.shutdown(socket.SHUT_WR)
            client.recv(1 << 16)
        assert Prefills(second, [address]).run([1]).logits.size


@pytest.mark.parametrize("options", [["--role", "decode"], ["--prefill-from", "here:80"]])
def test_roles_and_servers_go_together(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from qeff_zoo import cli

    assert cli.main(["serve", "nowhere", *options]) == 1
    assert "expected prefill servers for --role decode, and for no other" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["here", "here:", "here:0", "here:99999", ":80"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    session = two_of("toy", tmp_path / "package")[0]
    with pytest.raises(HandoffError, match="expected HOST:PORT"):
        Prefills(session, [address])


def test_two_processes_answer_as_one(
    built: dict[str, Package], sessions: dict[str, TextGenerationSession]
) -> None:
    session = sessions["rows"]
    wanted = [one.token_ids for one in session.generate(PROMPTS, generation_len=LENGTH)]
    package = str(built["one row"].path)
    command = [
        sys.executable,
        "-m",
        "qeff_zoo",
        "serve",
        package,
        "--role",
        "prefill",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with Engine(session, prefills=Prefills(session, [address])) as engine:
            handles = [
                engine.submit(session.request(prompt, generation_len=LENGTH)) for prompt in PROMPTS
            ]
            found = [handle.result(120).token_ids for handle in handles]
            assert engine.stats().handed_over == len(PROMPTS)
        server.terminate()
        assert server.wait(60) == 0
    assert found == wanted
