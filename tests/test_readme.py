"""README and docs: links lead somewhere, and the commands that are named exist."""

import re
from pathlib import Path

from depth_lib.sweep.cli import depth_lib

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
README = PAGES[ROOT / "README.md"]


def test_every_link_to_a_file_leads_there_and_the_readme_to_every_page():
    missing = []
    for page, text in PAGES.items():
        links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
        missing += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert missing == []
    assert {f"docs/{page.name}" for page in PAGES if page.parent == ROOT / "docs"} <= set(
        re.findall(r"\]\(([^)]+)\)", README)
    )


def test_every_make_target_named_is_one():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, text in PAGES.items():
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, f"{page.name}: {named - targets}"


def test_every_command_of_depth_lib_named_is_one():
    for page, text in PAGES.items():
        named = set(re.findall(r"(?:^|`|/)depth-lib ([a-z]+)", text, re.MULTILINE))
        assert named <= set(depth_lib.commands), f"{page.name}: {named - set(depth_lib.commands)}"


def test_every_page_and_notebook_is_in_the_navigation_of_the_site():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    assert [str(file.relative_to(ROOT)) for file in files if f" {file.relative_to(ROOT)}\n" not in text] == []
