"""The page: the executed notebook without its code, in one file."""

import functools
import re
from pathlib import Path

from nbconvert import HTMLExporter
from nbconvert.preprocessors import TagRemovePreprocessor

from ..files import write_again

# Figures and cells as wide as the screen at most; a wide table scrolls by itself. Text begins where figures do.
_STYLE = """<style>
body { max-width: 76rem; margin: auto; padding: 0 1rem; }
img { max-width: 100%; height: auto; }
.jp-RenderedHTMLCommon { overflow-x: auto; }
.jp-RenderedHTMLCommon th.row_heading ~ td { min-width: 15ch; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
</style></head>"""


@functools.cache
def _exporter():
    """The exporter, made once because it compiles its templates."""
    exporter = HTMLExporter(exclude_input=True, exclude_output_prompt=True, exclude_anchor_links=True)
    exporter.mathjax_url = exporter.require_js_url = exporter.mermaid_js_url = ""
    exporter.register_preprocessor(TagRemovePreprocessor(remove_cell_tags={"not-on-page"}), enabled=True)
    return exporter


def write_page(notebook: str | Path) -> Path:
    """Write report.html beside an executed notebook, without code and without cells tagged `not-on-page`."""
    path = Path(notebook).with_name("report.html")
    try:
        body, _ = _exporter().from_filename(str(notebook), {"metadata": {"name": "Effective depth"}})
    except ValueError as error:  # nbconvert finds no templates
        problem = str(error).splitlines()[0].rstrip(":")
        raise ValueError(f"{path} was not written: {problem}; run: pip install --force-reinstall nbconvert") from error
    body = re.sub(r'<script[^>]* src=""[^>]*>\s*</script>', "", body)  # nothing is fetched
    write_again({path: body.replace("</head>", _STYLE, 1).encode()})
    return path
