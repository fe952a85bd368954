# SPDX-License-Identifier: Apache-2.0
"""The page at `/`, in a real browser, at servers of tiny packages."""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fixtures_browser import Tab, opened_tab
from fixtures_serving import KEY, QUESTION, TIMEOUT, active, chat, connect, running, wait_until

import qeff_zoo
from qeff_zoo import serving
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.encoder_queue import EncoderQueue
from qeff_zoo.serving.page import PAGE_PATHS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror=hit=1><script>hit=1</script>"
#: What a model may write; nothing of it may become an element but code, lists, links to the web and the like.
OUTPUT = f"""# {HOSTILE}
**{HOSTILE}** `{HOSTILE}` [a](javascript:hit=1) [b]({HOSTILE}) ![c](https://evil.example/c.png)
[d](https://docs.example/"onclick="hit=1) <a href="javascript:hit=1">e</a> [f](data:text/html,x)

- {HOSTILE}
| {HOSTILE} | b |
|---|---|
| {HOSTILE} | <style>*{{display:none}}</style> |

```{HOSTILE}
{HOSTILE}
```
> {HOSTILE} https://docs.example/x"""
#: Labels whose field is wider than they are, and so covers the next one.
OVERLAPPING = (
    "all => all.filter(one => one.lastElementChild.getBoundingClientRect().right > "
    "one.getBoundingClientRect().right + 1).map(one => one.textContent)"
)
ROOT = Path(__file__).parent.parent


def root(url: str) -> str:
    return url.removesuffix("v1")


@pytest.fixture(scope="module")
def guarded(engine: Engine) -> Iterator[str]:
    """Give the URL of a server with a key."""
    with running(engine, api_keys=[KEY]) as url:
        yield url


def opened(page: "Page", url: str) -> None:
    """Open the page of a server, and wait until it knows the models."""
    page.goto(root(url))
    page.wait_for_selector("#model option", state="attached")


def send_request(page: "Page", text: str, ended: str = "The answer is complete.") -> str:
    """Send a message; give the text of the answer when it has ended."""
    from playwright.sync_api import expect

    page.fill("#text", text)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(ended, timeout=TIMEOUT * 1000)
    return page.locator("article.assistant .text").last.inner_text()


def test_a_chat_with_a_key_streams_and_stops(
    guarded: str, engine: Engine, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tab.page
    page.goto(root(guarded))
    for key in ("wrong", KEY):
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", key)
        page.keyboard.press("Enter")
    page.wait_for_selector("#model option", state="attached")
    assert len(tab.errors) == 2
    assert all("401" in one for one in tab.errors)
    tab.errors.clear()
    stored = page.evaluate("[sessionStorage.getItem('key'), localStorage.length, document.cookie]")
    assert stored == [KEY, 0, ""]

    page.click("#open-settings")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "16")
    page.fill("[name=system]", "Be brief.")
    page.click("text=Done")
    with connect(guarded) as client:
        system = {"role": "system", "content": "Be brief."}
        whole = chat(client, messages=[system, *QUESTION])
        expected = whole.choices[0].message.content
        turns = [system, *QUESTION, {"role": "assistant", "content": expected}]
        second = chat(client, messages=[*turns, {"role": "user", "content": "And?"}])
    assert send_request(page, QUESTION[0]["content"]) == expected.strip()
    assert send_request(page, "And?") == second.choices[0].message.content.strip()
    note = page.locator("article.assistant .actions").first.inner_text()
    assert f"{whole.usage.completion_tokens} tokens" in note
    assert ("cut" in note) == (whole.choices[0].finish_reason == "length")

    gate, decode = threading.Semaphore(3), engine.session.decoder.decode

    def slowly(pieces: Any) -> Any:
        assert gate.acquire(timeout=TIMEOUT)
        return decode(pieces)

    monkeypatch.setattr(engine.session.decoder, "decode", slowly)
    page.fill("#text", QUESTION[0]["content"])
    page.keyboard.press("Enter")
    page.wait_for_selector("article:nth-of-type(6) .text > *")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Stopped.")
    gate.release(100)
    wait_until(lambda: active(engine) == (0, 0))
    assert 0 < len(page.locator("article.assistant .text").last.inner_text()) < len(expected)
    page.click("text=New")
    assert page.locator("article").count() == 0
    page.select_option("#chats", index=0)
    assert page.locator("article").count() == 6


def test_text_of_models_is_never_html(engine: Engine, tab: Tab) -> None:
    page = tab.page
    call = {"index": 0, "id": "c", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    deltas = [{"reasoning_content": HOSTILE}, {"content": OUTPUT}, {"tool_calls": [call]}]
    chunks = [{"choices": [{"delta": one, "finish_reason": None}]} for one in deltas]
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
    with running(engine, name=HOSTILE) as url:
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(body=body, content_type="text/event-stream"),
        )
        opened(page, url)
        assert page.locator("#model").inner_text() == HOSTILE
        send_request(page, HOSTILE)
    assert page.locator("article.user .text").inner_text() == HOSTILE
    assert page.locator("article.assistant h2").inner_text() == HOSTILE
    shown = page.locator("article.assistant").inner_text()
    assert shown.count(HOSTILE) == 12
    assert page.locator("article :is(img, script, style, iframe)").count() == 0
    links = page.locator("article a").evaluate_all(
        "all => all.map(one => one.getAttribute('href'))"
    )
    assert links == [
        "https://evil.example/c.png", 'https://docs.example/"onclick="hit=1', "https://docs.example/x"
    ]  # fmt: skip
    assert page.evaluate("typeof hit") == "undefined"
    # Text that takes a pattern longest: a second would be a hundred times too much.
    begun = time.monotonic()
    page.evaluate(
        """async () => { const { markdown } = await import("/page/markdown.js");
        for (const one of ["**a", "`a", "[", "[a](", "*a", "> ", "- ", "|", "~~a", "# a    ", "https://a"])
          markdown(one.repeat(3000)); }"""
    )
    assert time.monotonic() - begun < 10


def test_an_image_is_sent(seeing: Package, tab: Tab, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (24, 24), "red").save(tmp_path / "red.png")
    (tmp_path / "a.txt").write_text("a")
    page = tab.page
    with Engine(qeff_zoo.load(seeing, threads=1)) as engine, running(engine) as url:  # type: ignore[arg-type]
        opened(page, url)
        page.evaluate("sessionStorage.settings = JSON.stringify({temperature: 0, max_tokens: 8})")
        opened(page, url)
        assert page.locator("#attach").is_visible()
        page.set_input_files("#file", tmp_path / "a.txt")
        page.wait_for_selector("text=takes no such file: a.txt")
        page.set_input_files("#file", tmp_path / "red.png")
        with page.expect_request("**/v1/chat/completions") as sent:
            answer = send_request(page, "Which colour?")
        body = sent.value.post_data_json
        with connect(url) as client:
            assert (
                answer
                == chat(client, messages=body["messages"], max_tokens=8)
                .choices[0]
                .message.content.strip()
            )
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text"]
    assert page.locator("article.user img").evaluate("one => one.naturalWidth") == 24
    assert page.locator("#files li").count() == 0


def test_recordings_are_sent(guarded: str, tab: Tab) -> None:
    page, speech = tab.page, ROOT / "examples" / "speech.wav"

    def models(*capabilities: str) -> None:
        body = json.dumps({"data": [{"id": "m", "capabilities": capabilities}]})
        page.route("**/v1/models", lambda route: route.fulfill(body=body))

    def sent(text: str, path: str, body: str) -> Any:
        page.route(f"**/v1/{path}", lambda route: route.fulfill(body=body))
        opened(page, guarded)
        page.set_input_files("#file", speech)
        page.wait_for_selector("text=speech.wav")
        with page.expect_request(f"**/v1/{path}") as request:
            page.fill("#text", text)
            page.keyboard.press("Enter")
        page.wait_for_selector("article.assistant .text >> text=Hello")
        return request.value

    models("transcription")
    request = sent("", "audio/transcriptions", json.dumps({"text": "Hello"}))
    assert b'filename="speech.wav"' in request.post_data_buffer
    models("chat", "audio")
    chunk = {"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]}
    request = sent("What is said?", "chat/completions", f"data: {json.dumps(chunk)}\n\n")
    recording, text = request.post_data_json["messages"][0]["content"]
    assert base64.b64decode(recording["input_audio"]["data"]) == speech.read_bytes()
    assert text == {"type": "text", "text": "What is said?"}


def test_the_page_is_accessible_at_every_width_and_color(
    engine: Engine, browser: "Browser"
) -> None:
    with running(engine) as url, opened_tab(browser) as tab:
        page = tab.page
        opened(page, url)
        page.evaluate("sessionStorage.settings = JSON.stringify({max_tokens: 4})")
        opened(page, url)
        send_request(page, "a" * 60)
        for width, colors in ((360, "dark"), (1280, "light")):
            page.set_viewport_size({"width": width, "height": 700})
            page.emulate_media(color_scheme=colors)  # type: ignore[arg-type]
            assert tab.flaws() == []
            assert tab.overflow() == 0
            page.click("#open-settings")
            assert tab.flaws() == []
            assert page.locator("#settings label").evaluate_all(OVERLAPPING) == []
            page.keyboard.press("Escape")
        names = {"Model", "Message", "Send", "Settings", "New", "Conversation"}
        assert all(name in page.locator("body").aria_snapshot() for name in names)


def test_what_an_encoder_does(encoder_package: Package, tab: Tab) -> None:
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    with closing(EncoderQueue(session, max_waiting=8)) as queue, running(queue) as url:
        opened(tab.page, url)
        answer = send_request(tab.page, "a cat\na cat\ntwo dogs sat")
        first, second = answer.splitlines()
        assert first == "1.0000 a cat"
        assert second.endswith(" two dogs sat")
        refused = send_request(tab.page, "alone", "Write a query, and below it one text a line.")
    assert refused == ""


def read(url: str, method: str = "GET") -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_files_of_the_page_need_no_key_and_are_strict(guarded: str, engine: Engine) -> None:
    for path in PAGE_PATHS:
        status, headers, body = read(root(guarded) + path[1:])
        assert status == 200
        assert body
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert read(root(guarded) + path[1:], "HEAD")[2] == b""
        assert read(root(guarded) + path[1:], "POST")[0] == 401
    for path in ("page/", "page/../app.py", "page/%2e%2e/app.py", "page/index.html", "v1/models"):
        assert read(root(guarded) + path)[0] == 401
    with running(engine, page=False) as url:
        assert {read(root(url) + path[1:])[0] for path in PAGE_PATHS} == {404}
    folder = Path(serving.__file__).parent
    assert '"qeff_zoo.serving" = ["static/*"]' in (ROOT / "pyproject.toml").read_text()
    files = {file.parent.name for file in folder.rglob("*.*") if file.suffix in (".html", ".js")}
    assert files == {"static"}
