# SPDX-License-Identifier: Apache-2.0
"""The checks of tests in the browser find what they are for."""

from pathlib import Path

from fixtures_browser import Tab
from static_server import served

PAGE = """<!doctype html><html><title>t</title><body style="width: 2000px"><img src="https://example.com/a.png">
<script>console.error("seen"); setTimeout(() => { throw new Error("uncaught") })</script></body></html>"""


def test_errors_requests_and_flaws_of_a_page_are_found(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(PAGE)
    with served(tmp_path) as (url, _):
        tab.page.goto(f"{url}/index.html")
        tab.page.wait_for_function("document.readyState == 'complete'")
    assert {flaw.partition(":")[0] for flaw in tab.flaws()} >= {"image-alt", "html-has-lang"}
    assert tab.overflow() > 0
    assert tab.foreign == ["https://example.com/a.png"]
    assert "seen" in tab.errors
    assert "uncaught" in tab.errors
    assert any("ERR_NAME_NOT_RESOLVED" in error for error in tab.errors)
    tab.errors.clear()
    tab.foreign.clear()
