# SPDX-License-Identifier: Apache-2.0
"""Hook of mkdocs: pages from outside docs/, generated pages, and links that lead out of docs/."""

import posixpath
import re
from pathlib import Path

from documentation.reference import manifest, options
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
#: Path in the repository -> path of its page.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "cpp/README.md": "cpp.md",
    "examples/tiny-llama/README.md": "tiny-llama.md",
    "examples/tiny-vlm/README.md": "tiny-vlm.md",
}
GENERATED = {"options.md": options, "manifest.md": manifest}
_LINK = re.compile(
    r"(?P<before>!?\[(?P<text>[^\]]*)\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/ and the generated pages."""
    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        # Front matter of a model card describes the model, not the page.
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
        files.append(File.generated(config, name, content=text))
    for name, page in GENERATED.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of the site; a link to any other file of the repository becomes its text."""
    pages = {name: source for source, name in OUTSIDE.items()}
    source = pages.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def led(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
        target = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not target or files.get_file_from_path(target) is None:
            return link["text"] if not path.startswith("docs/") else link[0]
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"{link['before']}{posixpath.relpath(target, start)}{link['anchor'] or ''})"

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    parts[::2] = [_LINK.sub(led, part) for part in parts[::2]]
    return "".join(parts)
