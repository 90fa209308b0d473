"""Lays out the pages of the documentation, and llms.txt, in build/pages: make docs."""

import inspect
import shutil
from pathlib import Path

import yaml

import depth_lib as dl

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    for folder in ("docs", "notebooks"):
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=shutil.ignore_patterns("*.py", "__pycache__", ".*"))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"):
        shutil.copy(ROOT / name, PAGES)
    public = [page_of(name, getattr(dl, name)) for name in dl.__all__]
    (PAGES / "functions.md").write_text("\n\n".join(["# Functions", *public]) + "\n", encoding="utf-8")
    (PAGES / "llms.txt").write_text(llms_txt(), encoding="utf-8")


def llms_txt():
    """The pages for users in one text, as https://llmstxt.org has it: links first, then every page."""
    names = ["README.md", *(page for part in NAV if "For users" in part for page in part["For users"])]
    pages = {name: (PAGES / name).read_text(encoding="utf-8") for name in names if str(name).endswith(".md")}
    links = [f"- [{text.partition(chr(10))[0].lstrip('# ')}]({name})" for name, text in pages.items()]
    return "\n\n".join(["# depth_lib", dl.__doc__, "\n".join(links), *pages.values()]) + "\n"


def page_of(name, value):
    """A public name as Markdown: its signature and its docstring, with examples as code."""
    signature = f"```python\ndl.{name}{inspect.signature(value)}\n```" if inspect.isfunction(value) else ""
    paragraphs = inspect.getdoc(value).split("\n\n")
    text = [f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in paragraphs]
    return "\n\n".join([f"## {name}", *filter(None, [signature]), *text])


if __name__ == "__main__":
    main()
