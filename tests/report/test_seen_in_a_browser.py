"""What a reader of the page sees: pictures that show what their captions say, and nothing wider than the screen."""

import base64
import html
import io
import json
import shutil
import subprocess

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from depth_lib.effective_depth.changes import depth_change
from depth_lib.figures import KINDS, card_figure, explore, plot
from depth_lib.figures.marks import COLOURS
from depth_lib.report.conclusions import conclusions
from depth_lib.report.page import gallery, write_page
from depth_lib.report.table import depth_table, read_tables
from depth_lib.results.study import Study
from tests.notebooks import ROOT
from tests.report.test_conclusions import BASE, SIZES, depths_of
from tests.synthetic import curves_with_depths, result_of

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def picture(width=1152, height=400):
    file = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def test_curves_of_many_runs_are_on_the_page_although_each_dataset_has_a_file_of_its_own(tmp_path):
    names = ["norms_gsm8k", "norms_hellaswag", "io_cos", "lens_kl_gsm8k", "layer_effects_gsm8k", "overview"]
    paths = [tmp_path / f"{name}.png" for name in names]
    for path in paths:
        path.write_bytes(base64.b64decode(picture(8, 8)))
    shown = gallery(paths)
    assert shown.count("<figure>") == 3 and shown.count(html.escape(KINDS["norms"].caption)) == 4


def test_depths_on_the_same_layer_are_dots_in_the_colours_of_all():
    results = {name: curves_with_depths(8, 3, 4, 5)["logit_lens"] for name in "abc"}
    for i, name in enumerate(results):
        results[name]["res_kl_divs"] = results[name]["res_kl_divs"] * (1 + i)  # curves apart from each other
    figure = plot("lens_kl", results).figure
    figure.canvas.draw()
    ax, pixels = figure.axes[0], np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255
    column, top = ax.transData.transform((4, ax.get_ylim()[1]))
    bottom = ax.transData.transform((4, 0))[1]
    rows = slice(int(len(pixels) - top) + 2, int(len(pixels) - bottom) - 2)
    near = pixels[rows, round(column) - 1 : round(column) + 2].reshape(-1, 3)
    for colour in COLOURS[:3]:
        assert np.abs(near - to_rgb(colour)).max(1).min() < 0.1, colour
    plt.close(figure)


def test_cells_where_no_effect_is_possible_are_white_and_the_menu_stands_between_buttons_and_titles():
    figure = explore("layer_effects", {"a model, on a dataset": result_of("layer_effects", 8)})
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    assert len(axes) == 4 and not any(axis.showgrid for axis in axes)
    (menu,), above = figure.layout.updatemenus, figure.layout.margin.t
    bottom = above - menu.pad.b - (menu.y - 1) * (figure.layout.height - above - figure.layout.margin.b)
    assert bottom <= above - 24 and bottom - 33 >= 30  # of titles, of the menu, and plotly's buttons, in pixels


def test_a_caption_speaks_of_a_part_of_a_layer_only_where_a_part_is_skipped():
    for name in ("layer_effects", "output_change", "skip_damage"):
        of_part = KINDS[f"mlp_{name.removeprefix('layer_')}"]
        assert "a layer's MLP" in of_part.caption and "a layer's MLP" in of_part.title
        assert "MLP" not in KINDS[name].caption
    assert "what attention adds to the residual stream" in KINDS["attention_gradients"].caption
    assert not any("part" in kind.caption.split() for kind in KINDS.values())


def test_a_sentence_names_the_rules_that_say_it_where_others_do_not():
    by_rule = {"cosine": [0.6, 0.7, 0.61, 0.68], "kl": [0.61, 0.7, 0.72, 0.83]}
    runs = [
        depths_of({(BASE[size], "gsm8k"): ratio for size, ratio in zip(SIZES, ratios, strict=True)}, metric)
        for metric, ratios in by_rule.items()
    ]
    (said,) = conclusions({}, pd.concat(runs), pd.DataFrame())
    assert said.startswith("With each doubling of their size models use a larger share of their depth, by KL: cosine ")


def test_a_change_names_its_layers_in_the_order_of_its_models():
    base, tuned = (curves_with_depths(8, 1, depth, 1)["logit_lens"] for depth in (2, 5))
    said = str(depth_change(base, tuned, "kl", ("base", "tuned")))
    assert "3 layers later in tuned than in base (layers 5 of 8 and 2 of 8)" in said


def test_the_card_says_that_dots_are_medians_and_a_dash_why_there_is_no_depth(published):
    assert "median over datasets" in card_figure(depths_of({("mine", "gsm8k"): 0.6})).axes[0].get_xlabel()
    shown = depth_table(read_tables(Study(published, ["toy-8l"], ["gsm8k"])), "cosine").as_raw_html()
    assert "no interval" not in shown


def test_every_cell_with_a_picture_says_what_it_shows():
    book = nbformat.read(ROOT / "notebooks/effective_depth.ipynb", as_version=4)
    for cell in book.cells:
        if "_figure" in cell.source and "not-on-page" not in cell.metadata.get("tags", ()):
            assert cell.metadata.get("alt"), cell.source


@pytest.fixture
def page(tmp_path, published):
    """A page with a card, a table, a picture and a heat map, and a script that measures it."""
    study = Study(published, datasets=["gsm8k"])
    heat_map = explore("layer_effects", {"DeepSeek-R1-Distill-Qwen-1.5B, hellaswag": result_of("layer_effects", 28)})
    measured = (
        "<script>onload = () => { const first = document.images[0].getBoundingClientRect();"
        "document.title = JSON.stringify([innerWidth, document.scrollingElement.scrollWidth, first.right,"
        "document.images[1].width, document.images[1].parentElement.getBoundingClientRect().right,"
        "document.images[1].alt]) }</script>"
    )
    card = [{"text/html": '<p class="answer">Here.</p>'}, {"image/png": picture(1536, 600)}]
    table = [{"text/html": depth_table(read_tables(study)).as_raw_html()}, {"text/html": measured}]
    shown = [card, [{"image/png": picture()}], [json.loads(heat_map.to_json())], table]
    shown[2] = [{"application/vnd.plotly.v1+json": shown[2][0]}]
    cells = [
        new_code_cell(metadata={"alt": "a picture"}, outputs=[new_output("display_data", data=data) for data in cell])
        for cell in shown
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "effective_depth.ipynb")
    return write_page(tmp_path / "effective_depth.ipynb")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")
@pytest.mark.parametrize("width", [500, 1200])
def test_nothing_is_wider_than_the_screen_and_pictures_keep_a_size_that_can_be_read(page, width):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    shown = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=300).stdout
    inner, scrolled, card, picture_width, box, alt = json.loads(shown.partition("<title>")[2].partition("</title>")[0])
    assert scrolled <= inner and card <= inner and box <= inner and picture_width >= 720 and alt == "a picture"
