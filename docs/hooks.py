"""Hooks of mkdocs: pages of the guide are run, and what stands beside `docs/` becomes pages too.

The guide's pages are jupytext notebooks. They are run here and given to mkdocs as Markdown, so that
they look, and are searched, as all other pages; an exception in one ends the build.
"""

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

ROOT = Path(__file__).parent.parent
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": None, "CHANGELOG.md": None}
log = get_plugin_logger("guide")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for name, page in BESIDE.items():
        # From there, links lead through docs/, which is the root here.
        text = (ROOT / name).read_text().replace("](docs/", "](").replace('src="docs/', 'src="')
        files.append(File.generated(config, page or name, content=text))
    for path in sorted((ROOT / "docs" / "guide").glob("*.py")):
        for name, content in run(path):
            files.append(File.generated(config, f"guide/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to the guide's programs lead to their pages; those out of docs/ become plain text."""
    markdown = re.sub(r"\]\((guide/\d_\w+)\.py\)", r"](\1.md)", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", markdown)


def run(path: Path) -> Iterator[tuple[str, str | bytes]]:
    """Runs a page; yields its Markdown and its pictures, with their names."""
    log.info(f"running {path.name}")
    notebook = jupytext.read(path)
    nbclient.NotebookClient(
        notebook,
        timeout=None,
        coalesce_streams=True,
        resources={"metadata": {"path": str(ROOT)}},
        config=traitlets.config.Config(KernelManager={"transport": "ipc"}),
    ).execute()
    # Bars and warnings are for who runs it.
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
