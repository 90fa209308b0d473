"""Lays out the pages of the rendered documentation in build/pages: make docs."""

import inspect
import shutil
from pathlib import Path

import depth_lib as dl

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    for folder in ("docs", "notebooks"):
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=shutil.ignore_patterns("*.py", "__pycache__", ".*"))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"):
        shutil.copy(ROOT / name, PAGES)
    public = [page_of(name, getattr(dl, name)) for name in dl.__all__]
    (PAGES / "functions.md").write_text("\n\n".join(["# Functions", *public]) + "\n", encoding="utf-8")


def page_of(name, value):
    """A public name as Markdown: its signature and its docstring, whose examples are code."""
    signature = f"```python\ndl.{name}{inspect.signature(value)}\n```" if inspect.isfunction(value) else ""
    paragraphs = inspect.getdoc(value).split("\n\n")
    text = [f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in paragraphs]
    return "\n\n".join([f"## {name}", *filter(None, [signature]), *text])


if __name__ == "__main__":
    main()
