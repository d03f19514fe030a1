"""Hooks of mkdocs: run the guide's pages, and add the documents of the repository's root.

The guide's pages are jupytext notebooks. They are run here and passed to mkdocs as Markdown.
So they look like all other pages and can be searched. An exception in one ends the build.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbclient
import nbconvert
import traitlets.config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "about.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
log = get_plugin_logger("guide")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not Markdown files in `docs/`."""
    for name, page in PAGES.items():
        content = _from_docs((ROOT / name).read_text())
        files.append(File.generated(config, page, content=content))
    for path in sorted((ROOT / "docs" / "guide").glob("[0-9]*.py")):
        for name, content in run(path):
            files.append(File.generated(config, f"guide/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Markdown whose links lead to pages of the site; links to other files become plain text."""
    to_docs = "../" * page.file.src_uri.count("/")

    def replace(link: re.Match[str]) -> str:
        label, target, anchor = link.groups(default="")
        if target in PAGES:
            return f"[{label}]({to_docs}{PAGES[target]}{anchor})"
        return label

    out_of_docs = re.compile(rf"\[([^\]]+)\]\({re.escape(to_docs)}\.\./([^)#]+)(#[^)]+)?\)")
    return re.sub(r"\]\((guide/\d+_\w+)\.py\)", r"](\1.md)", out_of_docs.sub(replace, markdown))


def _from_docs(markdown: str) -> str:
    """The text of a file in the repository's root, its links changed as if it were in `docs/`."""
    return re.sub(r"\]\((?!https?:|#)(docs/)?", lambda m: "](" if m[1] else "](../", markdown)


def run(path: Path) -> Iterator[tuple[str, str | bytes]]:
    """Yields the names and contents of a page's Markdown and of its pictures, after running it."""
    log.info(f"running {path.name}")
    notebook = jupytext.read(path)
    # Pages import modules of their folder, such as `similarities`.
    modules = filter(None, [str(path.parent), os.environ.get("PYTHONPATH")])
    nbclient.NotebookClient(
        notebook,
        timeout=None,
        coalesce_streams=True,
        resources={"metadata": {"path": str(ROOT)}},
        config=traitlets.config.Config(KernelManager={"transport": "ipc"}),
    ).execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(modules)})
    # Progress bars and warnings are not part of the page.
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        cell["outputs"] = [out for out in outputs if out.get("name") != "stderr"]
        if cell.cell_type != "code":
            del cell["outputs"]
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(
        notebook, {"output_files_dir": path.stem, "unique_key": path.stem}
    )
    source = f"\n\n---\n\nThis page is a program: [`docs/guide/{path.name}`]({path.name}).\n"
    text = text.replace("![svg](", "![Drawn by the code above](")
    yield f"{path.stem}.md", text + source
    yield from resources["outputs"].items()
