"""The explorer holds the results' own numbers, and in a browser shows the one that is pointed at."""

import base64
import json
import os
import shutil
import time

import numpy as np
import pytest
import torch

from depth_lib import effective_depth_kl
from depth_lib import files as storage
from depth_lib.report.explore import explorer_json
from depth_lib.report.page import draw_figures, write_report
from depth_lib.report.table import read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.provenance import prompts_hash
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, PAPER_MODELS, result_of, write_run

GSM8K = "toy-8l, gsm8k"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    write_run(out, "gsm8k", "toy-8l", 8)
    write_run(out, "gsm8k", "<script><b>", 4, ["logit_lens"])
    write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"])
    return Study(out)


@pytest.fixture(scope="module")
def runs(study):
    return json.loads(explorer_json(study), parse_constant=pytest.fail)


def figure_of(runs, run, title):
    figures = next(entry["figures"] for entry in runs if entry["run"] == run)
    return next(figure for figure in figures if title in figure["title"])


def array(values):
    """plotly's JSON of an array."""
    if isinstance(values, list):
        return np.array(values)
    flat = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    return flat.reshape([int(n) for n in values.get("shape", str(len(flat))).split(",")])


@pytest.mark.parametrize(
    ("title", "probe", "key"),
    [
        ("Residual erasure", "residual_erasure", "erasure_effect"),
        ("Turn of the residual", "relative_contribution", "first_change"),
        ("skipping a layer on later layers: all tokens", "layer_effects", "max_all_layer"),
    ],
)
def test_maps_hold_the_results_values_without_the_last_token_or_what_is_impossible(study, runs, title, probe, key):
    shown = array(figure_of(runs, GSM8K, title)["data"][0]["z"])
    truth = study["gsm8k", "toy-8l", probe][key].numpy().astype(np.float32)
    later = np.triu(np.ones_like(truth), 0) > 0
    expected = np.where(later, truth, np.nan) if probe == "layer_effects" else truth[:, :-1]
    np.testing.assert_array_equal(shown, expected)


def test_curves_hold_each_prompts_own_and_the_mean_with_threshold_and_depth(study, runs):
    figure = figure_of(runs, GSM8K, "KL divergence of the logit lens")
    lens = study["gsm8k", "toy-8l", "logit_lens"]
    assert [curve["name"] for curve in figure["data"]] == [*[f"prompt {n}" for n in range(10)], "all prompts"]
    *prompts, mean = [array(curve["y"]) for curve in figure["data"]]
    np.testing.assert_allclose(mean, lens["res_kl_divs"], rtol=1e-6)
    np.testing.assert_allclose(prompts, lens["res_kl_divs_sums"] / lens["n_tokens"][:, None], rtol=1e-6)
    level, depth = figure["layout"]["shapes"]
    assert depth["x0"] == effective_depth_kl(lens["res_kl_divs"]) and f"layer {depth['x0']}." in figure["note"]
    assert level["y0"] == pytest.approx(0.5 * lens["res_kl_divs"].max().item())


def save(out, probe, result, **meta):
    save_artifact(artifact_path(out, "gsm8k", "toy-8l", probe, 10), result, meta)
    study = Study(out)
    return json.loads(explorer_json(study))


def test_a_curve_that_spans_decades_has_a_logarithmic_axis(tmp_path):
    result = result_of("layer_effects", 8)
    for future_kl, kind in (([9.0, 2, 1, 0.5, 0.1, 0.01, 0.001, 0.0], "log"), ([9.0, 8, 7, 6, 5, 4, 3, 2], None)):
        result["future_kl"] = result["all_kl"] = torch.tensor(future_kl)
        runs = save(tmp_path, "layer_effects", result)
        assert figure_of(runs, GSM8K, "Damage of skipping a layer")["layout"]["yaxis"].get("type") == kind


def test_layers_whose_gradients_are_rough_are_marked(tmp_path):
    result = result_of("integrated_gradients", 8) | {"error": torch.tensor([0.0, 0.5, 0, 0, 0, 0, 0.002, 0.3])}
    figure = figure_of(save(tmp_path, "integrated_gradients", result), GSM8K, "Integrated gradients")
    heatmap, marks = figure["data"]
    assert array(marks["y"]).tolist() == [1, 7] and set(marks["x"]) == {heatmap["x"][-1]}
    assert figure["note"].endswith("relative error is above the tolerance.")


@pytest.mark.parametrize("source", ["embedded", "hub"])
def test_prompts_at_hand_are_called_by_their_text_and_others_by_their_number(tmp_path, monkeypatch, source):
    prompts = [f"What is {n} + <1>?" for n in range(10)]
    monkeypatch.setattr("depth_lib.report.explore.load_prompts", lambda *_, **__: prompts)
    meta = {"source": source, "n_prompts": 10, "seed": 123, "prompts_hash": prompts_hash(prompts)}
    known = figure_of(save(tmp_path, "logit_lens", result_of("logit_lens", 8), **meta), GSM8K, "KL divergence")
    assert [curve["name"] for curve in known["data"][:-1]] == [f"{n} + &lt;1&gt;?" for n in range(10)]
    meta = {"prompts_hash": "others"} if source == "hub" else meta | {"prompts_hash": "others"}
    other = figure_of(save(tmp_path, "logit_lens", result_of("logit_lens", 8), **meta), GSM8K, "KL divergence")
    assert [curve["name"] for curve in other["data"]] == [*[f"prompt {n}" for n in range(10)], "all prompts"]


@pytest.mark.filterwarnings("ignore")  # that there is no depth
def test_values_that_are_not_finite_are_gaps_on_the_page(tmp_path):
    for probe, key in (("relative_contribution", "att_cos"), ("logit_lens", "res_kl_divs")):
        result = result_of(probe, 8)
        result[key][3] = float("nan")
        path = artifact_path(tmp_path, "gsm8k", "toy-8l", probe, 10)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(result | {"meta": {"seed": 1}}, path)
    study = Study(tmp_path)
    page = write_report(study, read_tables(study)).read_text()
    runs = json.loads(page.partition('id="explore-data">')[2].partition("</script>")[0], parse_constant=pytest.fail)
    curves = {curve["name"]: array(curve["y"]) for curve in figure_of(runs, GSM8K, "Cosine similarity")["data"]}
    assert np.flatnonzero(~np.isfinite(curves["Attention: cossim(a, h)"])).tolist() == [3]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright: make test-oracles")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=[1400, 390])
def tab(request, browser, study):
    """The report in a window of that many pixels; it may ask no network for anything, and nothing may go wrong."""
    path = write_report(study, read_tables(study))
    problems = []
    tab = browser.new_page(viewport={"width": request.param, "height": 800})
    tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(path.as_uri())
    tab.wait_for_selector("#explore-plot .main-svg")
    yield tab
    assert problems == []
    tab.close()


def test_a_browser_that_cannot_unpack_the_figures_says_so_in_their_place(browser, study):
    tab = browser.new_page()
    tab.add_init_script("delete window.DecompressionStream")
    tab.goto(write_report(study, read_tables(study)).as_uri())
    tab.wait_for_function("document.getElementById('explore-plot').textContent.includes('DecompressionStream')")
    tab.close()


def point(tab, run, title, across, down):
    """Chooses a figure, moves the pointer to a share of its inner area, and returns what is said there."""
    tab.select_option("#explore-run", label=run)
    titles = tab.eval_on_selector_all("#explore-figure option", "all => all.map(one => one.textContent)")
    tab.select_option("#explore-figure", label=next(name for name in titles if title in name))
    area = tab.locator("#explore-plot .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    tab.mouse.move(0, 0)
    tab.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return tab.locator("#explore-plot .hoverlayer text").first.text_content()


def test_pointing_at_a_map_tells_the_place_and_the_value(tab, study):
    erasure = study["gsm8k", "toy-8l", "residual_erasure"]["erasure_effect"][:, :-1]
    effects = study["gsm8k", "toy-8l", "layer_effects"]["max_future_layer"]
    for title, values, row, column, place in (
        ("Residual erasure", erasure.flip(0), 3, 3, "Layer index l 5, Token 3 “+”"),  # layer 0 is the lowest row
        ("later layers: future tokens", effects, 2, 5, "Layer skipped 2, Effect @ layer 5"),
    ):
        n_rows, n_columns = values.shape
        told, value = point(tab, GSM8K, title, (column + 0.5) / n_columns, (row + 0.5) / n_rows).rsplit(": ", 1)
        assert told == place
        assert float(value) == pytest.approx(values[row, column].item(), rel=1e-3)


def test_nothing_is_wider_than_the_window(tab):
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.evaluate("document.querySelector('#explore-plot .main-svg').getBoundingClientRect().width") > 300


@pytest.mark.timeout(600)  # it draws every figure of 36 runs
def test_a_report_of_twelve_models_on_three_datasets_is_small_and_opens_in_three_seconds(
    browser, tmp_path, monkeypatch
):
    if not os.environ.get("REPORT_OF_36"):
        pytest.skip("takes a minute and measures seconds, so nothing may run beside it: make test-oracles")
    monkeypatch.setattr(storage.os, "fsync", lambda descriptor: None)
    for model, n_layers in PAPER_MODELS.items():
        for dataset in DATASETS:
            write_run(tmp_path, dataset, model, n_layers)
    study = Study(tmp_path)
    tables = read_tables(study)
    path = write_report(study, tables, draw_figures(study, tables))
    assert path.stat().st_size < 15e6
    tab = browser.new_page()
    start = time.perf_counter()
    tab.goto(path.as_uri(), wait_until="load")
    seconds = time.perf_counter() - start
    assert seconds < 3
    tab.wait_for_selector("#explore-plot .main-svg")
    print(f"{path.stat().st_size / 1e6:.1f} MB, {seconds:.2f} s")
    assert len(tab.pdf()) > 100_000  # printed
    tab.close()
