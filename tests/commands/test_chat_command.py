# SPDX-License-Identifier: Apache-2.0
"""`qeff-zoo chat`: conversations by lines, their commands, Ctrl-C, and what is refused."""

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_templates import THINKING
from checkout import ROOT, TINY_LLAMA

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.cli import chatting
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, PrefixCacheOptions, Sampling, TextGenerationSession
from qeff_zoo.runtime.engine.conversation import Conversation, Turn
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.sessions import open_session
from qeff_zoo.tasks.multimodal.session import MediaTextSession
from qeff_zoo.terminal.printing import print_dimmed, print_generated

pytestmark = pytest.mark.turns(2)

GUIDE = ROOT / "docs" / "generation.md"
FIRST, SECOND = "What is collections.OrderedDict?", "What is socket.socket?"


class Terminal(io.StringIO):
    """Text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def chat(
    trained: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that chats by lines, and returns exit code, stdout and stderr."""

    def run(lines: list[str], *options: str, package: Package = trained) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = cli.main(["chat", str(package.path), "--threads", "1", *options])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def conversation(engine: Engine) -> Conversation:
    return Conversation(engine, generation_len=8)


def send(conversation: Conversation, text: str) -> str:
    """Send a message; return the text of the answer."""
    turn = Turn(text=text)
    list(conversation.send(turn))
    assert turn.output is not None
    return turn.output.text


def answered(session: TextGenerationSession, *texts: str, **choices: Any) -> str:
    """Return the answer to a conversation of a system prompt, questions and answers, by `generate`."""
    roles = ("system", *("user", "assistant") * len(texts))
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, texts, strict=False) if text
    ]
    (output,) = session.generate([session.encode_chat(messages)], **choices)
    return output.text


def test_turns_are_generated_from_the_whole_conversation(
    chat: Any, alone: TextGenerationSession, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    lines = [FIRST, "", SECOND, f"/save {file}"]
    code, out, err = chat(lines, "--system", "Be brief.", "--generation-len", "12")
    first = answered(alone, "Be brief.", FIRST, generation_len=12)
    second = answered(alone, "Be brief.", FIRST, first, SECOND, generation_len=12)
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert re.fullmatch(r"(The answer ends here, after --generation-len tokens\.\n)*", err)
    texts = [message["content"] for message in json.loads(file.read_text())["messages"]]
    assert texts == ["Be brief.", FIRST, first, SECOND, second]
    assert chat(lines, "--generation-len", "2")[0] == 1  # the file exists


def test_commands(chat: Any, alone: TextGenerationSession) -> None:
    lines = [
        FIRST,
        SECOND,
        "/clear 1",
        "/retry",
        "/system Be brief.",
        "/clear",
        "//x",
        "/exit",
        "x",
    ]
    code, out, _ = chat(lines, "--generation-len", "8", "--json")
    outputs = [json.loads(line) for line in out.splitlines()]
    first = answered(alone, "", FIRST, generation_len=8)
    expected = [
        first,
        answered(alone, "", FIRST, first, SECOND, generation_len=8),
        answered(alone, "", SECOND, generation_len=8),
        answered(alone, "Be brief.", "/x", generation_len=8),
    ]
    assert (code, [output["text"] for output in outputs]) == (0, expected)
    assert expected[1] != expected[2]
    assert chat(["/help"])[2].count("\n") == len(chatting.CHAT_COMMANDS) - 2  # no images and audio


def test_a_conversation_is_loaded(chat: Any, alone: TextGenerationSession, tmp_path: Path) -> None:
    file, again = tmp_path / "talk.json", tmp_path / "again.json"
    options = ("--generation-len", "8", "--json")
    first = json.loads(chat([FIRST, f"/save {file}"], "--system", "Be brief.", *options)[1])["text"]
    lines = [SECOND, f"/load {file}", f"/save {again}", SECOND]
    code, out, err = chat(lines, *options)
    assert code == 0
    assert "Loaded 1 turns." in err
    expected = answered(alone, "Be brief.", FIRST, first, SECOND, generation_len=8)
    assert json.loads(out.splitlines()[1])["text"] == expected
    assert again.read_text() == file.read_text()


def test_texts_of_files_are_sent(chat: Any, alone: TextGenerationSession, tmp_path: Path) -> None:
    for name in ("a.py", "b.txt"):
        (tmp_path / name).write_text(f"class {name[0]}: pass\n")
    files = [f"/file {tmp_path / name}" for name in ("a.py", "b.txt")]
    code, out, _ = chat(
        [*files, FIRST, "/retry", files[0], "/clear", FIRST], "--generation-len", "8"
    )
    text = f"a.py:\n\nclass a: pass\n\nb.txt:\n\nclass b: pass\n\n{FIRST}"
    expected = [answered(alone, "", one, generation_len=8) for one in (text, text, FIRST)]
    assert (code, out) == (0, "".join(f"{one}\n" for one in expected))
    (tmp_path / "b.txt").write_bytes(b"\xff")
    for name, message in (
        ("b.txt", "it is no text in UTF-8"),
        ("", "Not a regular file"),
        ("c", "No such file"),
    ):
        code, _, err = chat([f"/file {tmp_path / name}"])
        assert (code, message in err) == (1, True), err


def test_parameters_are_set(chat: Any, alone: TextGenerationSession) -> None:
    lines = ["/set temperature 1", "/set seed 5", "/set generation-len 6", "/set", FIRST, "/clear"]
    code, out, err = chat([*lines, "/set temperature", "/set seed", FIRST], "--json")
    assert code == 0
    assert re.search(
        r"temperature +1\.0\n.*top_k +default\nseed +5\ngeneration_len +6\n", err, re.S
    )
    drawn = Sampling(temperature=1.0, seed=5)
    expected = [
        answered(alone, "", FIRST, generation_len=6, **choices)
        for choices in ({"sampling": drawn}, {})
    ]
    assert [json.loads(line)["text"] for line in out.splitlines()] == expected


def test_the_next_turn_reuses_the_answer(trained: Package) -> None:
    answers = PrefixCacheOptions(answers="possible")
    with Engine(open_session(trained, threads=1, prefixes=answers)) as engine:
        conversation = Conversation(engine, generation_len=24)
        send(conversation, f"{FIRST} {SECOND}")
        assert conversation.generation is not None
        prompt = conversation.generation.prompt_tokens
        send(conversation, "x")
        assert conversation.generation.reused_tokens > prompt  # also of the answer
    session = open_session(
        trained, threads=1, prefixes=PrefixCacheOptions(answers="possible", bytes=0)
    )  # nothing to cache in is no error
    assert session.task == trained.task


def test_leaving_an_answer_keeps_its_text(conversation: Conversation) -> None:
    whole = send(conversation, FIRST)
    (turn,) = conversation.turns
    events = conversation.send(turn)
    first = next(events)
    events.close()
    assert conversation.generation is not None
    assert conversation.turns == [turn]
    assert turn.output is not None
    assert turn.output.text == getattr(first, "text", None)
    assert whole.startswith(turn.output.text)
    assert turn.output.text != whole


def terminal(
    monkeypatch: pytest.MonkeyPatch, package: Package, lines: list[str], *options: str
) -> tuple[int, str, str]:
    """Chat in a terminal; return exit code, stdout and stderr."""
    read = iter(lines)

    def prompt() -> str:
        try:
            return next(read)
        except StopIteration:
            raise EOFError from None

    out, err = Terminal(), Terminal()
    monkeypatch.setattr(chatting, "_prompting", lambda: prompt)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    code = cli.main(["chat", str(package.path), "--threads", "1", *options])
    return code, out.getvalue(), err.getvalue()


def test_a_terminal_survives_interrupts_and_errors(
    trained: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown, interrupts = print_generated, [KeyboardInterrupt]

    def interrupted(text: str, end: str = "\n") -> None:
        shown(text, end)
        if interrupts and text:
            raise interrupts.pop()

    monkeypatch.setattr(chatting, "print_generated", interrupted)
    file, long = tmp_path / "talk.json", "word " * 200
    lines = [FIRST, "/nothing", long, SECOND, f"/save {file}", f"/save {file}"]
    code, out, err = terminal(monkeypatch, trained, lines, "--generation-len", "8")
    _, stopped, second, answer = json.loads(file.read_text())["messages"]
    assert (code, second["content"]) == (0, SECOND)
    assert out == f"{stopped['content']}\n{answer['content']}\n"
    assert 0 < len(stopped["content"]) < len(answer["content"])
    assert re.search(r"no command '/nothing'.*\n.*not sent: .* 128 .*/clear N.*1 turns", err)
    assert re.search(r"Cannot write .*talk.json': File exists", err)
    assert re.search(r"^\d+ tokens, \d+\.\d a second$", err, re.MULTILINE)


def use_template(monkeypatch: pytest.MonkeyPatch, source: str | None) -> None:
    """Give packages another chat template, or none."""
    found = ChatTemplate(source, {}) if source else None
    monkeypatch.setattr(ChatTemplate, "find", lambda _: found)


def test_reasoning(trained: Package, chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_template(monkeypatch, THINKING)
    choices = ("--generation-len", "8", "--json")
    thinks = json.loads(chat(["x"], *choices)[1])
    answers = json.loads(chat(["x"], *choices, "--reasoning-effort", "none")[1])
    assert (thinks["text"], answers["reasoning"]) == ("", "")
    assert thinks["reasoning"]
    assert answers["text"]
    assert chat(["x"], *choices[:2])[1] == "\n"  # a pipe gets the text alone
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, out, _ = terminal(monkeypatch, trained, ["x"], *choices[:2])
    pieces = re.findall(r"\x1b\[2m(.*?)\x1b\[0m", out, re.DOTALL)
    assert "".join(pieces) == thinks["reasoning"]


def test_reasoning_does_not_steer_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    print_dimmed("a\x1b[2Jb")
    assert out.getvalue() == "a\\u001b[2Jb"


def test_images(seeing: Package, chat: Any) -> None:
    photos = TINY_LLAMA.parent / "tiny-vlm" / "images"
    one, other = photos / "four-blue-squares.png", photos / "a-red-triangle-top-right.png"
    question = "What is in the picture?"
    lines = [f"/image {one}", question, f"/image {other}", question]
    code, out, _ = chat(lines, "--generation-len", "12", "--json", package=seeing)
    texts = [json.loads(line)["text"] for line in out.splitlines()]
    session = qeff_zoo.load(seeing, threads=1, prefix_cache_bytes=0)
    assert isinstance(session, MediaTextSession)
    part = [{"type": "image"}, {"type": "text", "text": question}]
    requested = [{"role": "user", "content": part}, {"role": "assistant", "content": texts[0]}]
    expected = [
        session.generate(
            [session.encode_chat([*requested, *requested][: 2 * count - 1])],
            images=[[one, other][:count]],
            generation_len=12,
        )[0].text
        for count in (1, 2)
    ]
    assert (code, texts) == (0, expected)
    assert "blue" in texts[0]
    for line, message in ((f"/image {one}x", "squares.pngx"), ("/audio a.wav", "reads no audio")):
        code, _, err = chat([line], package=seeing)
        assert (code, message in err) == (1, True)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["/nothing"], [], r"no command '/nothing'; expected /help, .*two of them"),
        (["/image"], [], r"/image has the argument ''; expected FILE"),
        (["/help me"], [], r"/help has the argument 'me'; expected none"),
        (["/clear all"], [], r"/clear has the argument 'all'; expected a number"),
        (["/retry"], [], r"/retry has no message"),
        (["/image a.png"], [], r"reads no images, and 'a.png' is given; expected text"),
        (["/load absent"], [], r"Cannot read 'absent': No such file"),
        (["/load @[]"], [], r"is no conversation; expected a JSON file"),
        (["/load @{}"], [], r"is no conversation; expected a JSON file"),
        (['/load @{"messages": [{"role": "user", "content": "x"}]}'], [], r"roles user; expected"),
        (["/set heat 1"], [], r"parameter 'heat'; expected one of temperature"),
        (["/set top-k 1.5"], [], r"/set top_k has the value '1.5'; expected a number"),
        (["/set top-p 2"], [], r"top_p"),
        (["/save absent/file"], [], r"Cannot write 'absent/file': No such file"),
        (["word " * 200], [], r"not sent: A prompt has .* tokens; expected at most 127.*/clear N"),
        ([], ["--seed", "1"], r"--seed is for tokens drawn at random"),
        ([], ["--chat-template", "other"], r"no chat template 'other'"),
        ([], ["--adapter", "x"], r"expected NAME=DIR"),
    ],
)
def test_refusals(
    chat: Any, lines: list[str], options: list[str], message: str, tmp_path: Path
) -> None:
    """The text behind an @ is that of a file."""
    lines = [*lines]
    for number, (name, _, text) in enumerate(line.partition("@") for line in lines):
        if text:
            (tmp_path / "file").write_text(text)
            lines[number] = f"{name}{tmp_path / 'file'}"
    code, out, err = chat(lines, *options)
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"qeff-zoo: .*{message}.*\n", err)


def test_packages_without_a_chat(
    chat: Any, encoder_package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff_zoo.sessions.open_session", None)  # refused before it
    code, _, err = chat([FIRST], package=encoder_package)
    assert code == 1
    assert re.search(r"feature-extraction holds no conversation; expected one for text-gen", err)
    refusing = "{{ raise_exception('No') }}"
    use_template(monkeypatch, refusing)
    code, _, err = chat([FIRST], "--system", "x")
    assert code == 1
    assert re.search("chat template.*No", err)
    use_template(monkeypatch, None)
    code, _, err = chat([FIRST])
    assert code == 1
    assert re.search(r"no chat template; expected one .*qeff-zoo run", err)


def test_stdin_must_be_text(chat: Any, trained: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), "utf-8"))
    with pytest.raises(qeff_zoo.ZooError, match=r"Cannot read a line of stdin: .*utf-8"):
        chatting._next_line()


def test_the_example_of_the_guide(chat: Any) -> None:
    pages = GUIDE.read_text(encoding="utf-8")
    (line,) = re.findall(r"<!-- chat: .*\n```console\n\$ (.*)\n", pages)
    piped, command = line.split(" | qeff-zoo chat PACKAGE ")
    code, out, _ = chat(shlex.split(piped)[1].split("\\n"), *shlex.split(command))
    outputs = [json.loads(answer) for answer in out.splitlines()]
    assert (code, len(outputs)) == (0, 2)
    assert all(output["text"] for output in outputs)
    described = re.findall(r"^\| (`/.*`) \|", pages, re.MULTILINE)
    names = re.findall("/[a-z]+", " ".join(described))
    assert sorted(names) == sorted(name for name, *_ in chatting.CHAT_COMMANDS)
