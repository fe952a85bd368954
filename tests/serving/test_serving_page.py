# SPDX-License-Identifier: Apache-2.0
"""The page at `/`, in a real browser, at servers of tiny packages."""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checkout import ROOT
from fixtures_browser import Tab, opened_tab
from fixtures_serving import KEY, QUESTION, TIMEOUT, active, chat, connect, running, wait_until

import qeff_zoo
from qeff_zoo import serving
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.server.page import PAGE_PATHS
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

pytestmark = pytest.mark.turns(3)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

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
    assert all("401" in error for error in tab.errors)
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
    page.click("#chats button >> nth=0")
    assert page.locator("article").count() == 6


def test_text_of_models_is_never_html(engine: Engine, tab: Tab) -> None:
    page = tab.page
    call = {"index": 0, "id": "c", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    deltas = [{"reasoning_content": HOSTILE}, {"content": OUTPUT}, {"tool_calls": [call]}]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
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
        for (const one of ["**a", "`a", "[", "[a](", "*a", "> ", "- ", "|", "~~a", "# a    ",
          "https://a", "$a", "\\\\(a", "\\n$$a", "| - :"])
          markdown(one.repeat(3000)); }"""
    )
    assert time.monotonic() - begun < 10


def test_an_image_is_sent(seeing: Package, tab: Tab, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (24, 24), "red").save(tmp_path / "red.png")
    (tmp_path / "a.bin").write_bytes(b"\0\xff")
    page = tab.page
    with Engine(qeff_zoo.load(seeing, threads=1)) as engine, running(engine) as url:  # type: ignore[arg-type]
        opened(page, url)
        page.evaluate("sessionStorage.settings = JSON.stringify({temperature: 0, max_tokens: 8})")
        opened(page, url)
        assert page.locator("#attach").is_visible()
        page.set_input_files("#file", tmp_path / "a.bin")
        page.wait_for_selector("text=takes no such file: a.bin")
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


def chunks_of(text: str) -> str:
    """Return a stream of one chunk."""
    chunk = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"


def opened_with(
    page: "Page",
    url: str,
    write: Callable[[list[Any]], str],
    capabilities: Sequence[str] = ("chat",),
) -> None:
    """Open the page of a server whose model writes what a function returns for the messages."""

    def answered(route: Any) -> None:
        text = write(route.request.post_data_json["messages"])
        route.fulfill(body=chunks_of(text), content_type="text/event-stream")

    body = json.dumps({"data": [{"id": "m", "capabilities": capabilities}]})
    page.route("**/v1/models", lambda route: route.fulfill(body=body))
    page.route("**/v1/chat/completions", answered)
    opened(page, url)


def texts(page: "Page", *expected: str) -> None:
    """Wait until the messages of the chat are these texts."""
    listed(page.locator("article .text"), *expected)


def listed(elements: "Locator", *expected: str) -> None:
    """Wait until elements have these texts: the page's storage answers after a click returns."""
    from playwright.sync_api import expect

    expect(elements).to_have_text(expected, timeout=TIMEOUT * 1000)


def test_chats_and_versions_stay_in_the_browser(guarded: str, tab: Tab, tmp_path: Path) -> None:
    page, turns = tab.page, []

    def write(messages: list[Any]) -> str:
        turns.append([message["content"] for message in messages])
        return f"answer {len(turns)}"

    opened_with(page, guarded, write)
    assert page.locator("#clear").is_disabled()
    send_request(page, "first")
    send_request(page, "second")
    page.click("article.user >> nth=0 >> text=Edit")
    page.fill("article textarea", "changed")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=answer 3")
    assert turns[-1] == ["changed"]
    texts(page, "changed", "answer 3")
    page.click("text=Retry")
    page.wait_for_selector("text=answer 4")
    assert turns[-1] == ["changed"]
    page.click("article.assistant >> css=[aria-label='Version before']")
    texts(page, "changed", "answer 3")
    page.click("article.user >> css=[aria-label='Version before']")
    texts(page, "first", "answer 1", "second", "answer 2")
    page.click("article.assistant >> nth=0 >> text=Retry")
    page.wait_for_selector("text=answer 5")
    page.click("article.assistant >> css=[aria-label='Version before']")
    kept = ["first", "answer 1", "second", "answer 2"]
    texts(page, *kept)

    page.click("text=New")
    send_request(page, "another chat")
    opened(page, guarded)
    titles = page.locator("#chats li button:first-child")
    listed(titles, "another chat", "first")
    page.fill("#search", "SECOND")
    listed(titles, "first")
    titles.first.click()
    texts(page, *kept)
    page.fill("#search", "")

    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    page.click("[aria-label='Delete first']")
    page.click("dialog >> text=Cancel")
    assert titles.count() == 2
    page.click("[aria-label='Delete first']")
    page.click("dialog >> text=Delete >> nth=-1")
    listed(titles, "another chat")
    texts(page)
    page.click("#clear")
    page.click("dialog >> text=Delete all >> nth=-1")
    listed(titles)
    opened(page, guarded)
    listed(titles)

    page.set_input_files("#chats-file", {"name": "a.json", "mimeType": "", "buffer": b"{}"})
    page.wait_for_selector("text=a.json: The file holds no chats of this page.")
    page.set_input_files("#chats-file", file)
    page.wait_for_selector("text=Imported 2 chats.")
    opened(page, guarded)
    page.click("text=first")
    texts(page, *kept)


def pdf_of(text: str) -> bytes:
    """Return a PDF of one page."""
    drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = "%PDF-1.4\n", []
    for number, entry in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{entry}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return (body + head + end).encode()


def test_text_and_pdfs_are_attached_as_text(guarded: str, tab: Tab) -> None:
    page, sent = tab.page, []
    opened_with(page, guarded, lambda messages: sent.append(messages[-1]["content"]) or "Hello")
    assert page.locator("#attach").is_visible()
    page.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File(["x = 1"], "a.py"));
          for (const type of ["dragover", "drop"])
            document.body.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true }));
        }"""
    )
    page.wait_for_selector("#files >> text=a.py")
    files = [
        {"name": "b.pdf", "mimeType": "application/pdf", "buffer": pdf_of("Two words")},
        {"name": "c.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 damaged"},
        {"name": "d.png", "mimeType": "image/png", "buffer": b"\x89PNG"},
    ]
    page.set_input_files("#file", files)
    page.wait_for_selector("text=takes no such file: d.png")
    assert page.locator("#files li").count() == 2
    send_request(page, "What?")
    parts = ["a.py:\n\nx = 1\n\n", "b.pdf:\n\nTwo words\n\n", "What?"]
    assert sent == [[{"type": "text", "text": part} for part in parts]]
    assert page.locator("article.user .media summary").all_inner_texts() == ["a.py", "b.pdf"]
    assert page.locator("article.user .text").inner_text() == "What?"


def test_code_and_formulas(guarded: str, tab: Tab) -> None:
    page = tab.page
    text = """Euler: $e^{i\\pi} = -1$, \\(a\\), for $5 and $6.

```python
def f(): return 'x'
```

$$
\\frac{1}{2}
$$

$\\frac{$ $\\href{javascript:hit=1}{a}$
- [x] done
"""
    opened_with(page, guarded, lambda _: text)
    send_request(page, "?")
    assert page.locator("article math").count() == 3
    assert page.locator("article math[display=block], article .formula math").count() == 1
    assert "for $5 and $6." in page.locator("article.assistant .text p").first.inner_text()
    assert "\\frac{" in page.locator("article.assistant .text p").last.inner_text()
    assert page.locator("article :is(a, [href])").count() == 0
    assert page.locator(".code .keyword").all_inner_texts() == ["def", "return"]
    assert page.locator("article [type=checkbox]").is_checked()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for remove in (False, True):
        if remove:  # a page over http from another host
            page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.click(".code button")
        page.wait_for_selector(".code button >> text=Copied")
        page.wait_for_selector(".code button >> text=Copy", timeout=5000)
        page.fill("#text", "")
        page.focus("#text")
        page.keyboard.press("Control+V")
        assert page.input_value("#text") == "def f(): return 'x'"


def test_tables_and_formulas_on_a_phone(guarded: str, tab: Tab) -> None:
    """They scroll by touch and by keyboard; no word of a cell is broken, and columns have the sides of their marks."""
    page = tab.page
    page.set_viewport_size({"width": 360, "height": 640})
    text = f"""| Name of it | Value | Wide column | Wide column | Wide column |
|:---|--:|:-:|---|---|
| absolutely | 1 | a \\| b | y | z |

$${"+".join(["x"] * 40)}$$

### Heading
#### Heading
"""
    opened_with(page, guarded, lambda _: text)
    send_request(page, "?")
    cells = page.locator("article td")
    assert cells.all_inner_texts() == ["absolutely", "1", "a | b", "y", "z"]
    sides = cells.evaluate_all("all => all.map(one => getComputedStyle(one).textAlign)")
    assert sides == ["left", "right", "center", "start", "start"]
    heights = cells.evaluate_all("all => all.map(one => one.clientHeight)")
    assert max(heights) < 40  # a line
    sizes = "one => parseFloat(getComputedStyle(one).fontSize)"
    assert page.locator("article h6").evaluate(sizes) >= 16
    for name in ("table", ".formula"):
        assert page.locator(f"article {name}").evaluate("one => one.scrollWidth > one.clientWidth")
    assert (tab.flaws(), tab.overflow()) == ([], 0)


def test_what_is_sent_scrolls_and_a_dead_server_is_named(guarded: str, tab: Tab) -> None:
    page = tab.page
    opened_with(page, guarded, lambda _: "line\n\n" * 100)
    low = "one => one.scrollHeight - one.scrollTop - one.clientHeight < 2"
    for _ in range(2):
        send_request(page, "?")
        assert page.locator("#log").evaluate(low)
        page.locator("#log").evaluate("one => one.scrollTop = 0")
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    host = root(guarded).split("/")[2]
    ended = f"The server at {host} cannot be reached. Is it running? Then try again."
    send_request(page, "again", ended)
    assert page.locator("article.assistant .error").last.inner_text() == ended
    assert any("ERR_CONNECTION_REFUSED" in error for error in tab.errors)
    tab.errors.clear()
    page.unroute("**/v1/chat/completions")
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=chunks_of("back"), content_type="text/event-stream"),
    )
    page.click("text=Retry >> nth=-1")
    page.wait_for_selector("article.assistant >> text=back")


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
    assert (
        '"qeff_zoo.serving" = ["static/*", "static/vendor/*"]'
        in (ROOT / "pyproject.toml").read_text()
    )
    files = {file.parent.name for file in folder.rglob("*.*") if file.suffix in (".html", ".js")}
    assert files == {"static", "vendor"}
