"""The report's explorer: its data are the results', and a browser shows them under the pointer."""

import base64
import json
import os
import re
import shutil
import time

import numpy as np
import pytest

from depth_lib.report import page as report
from depth_lib.report.explore import explored
from depth_lib.report.tables import read_tables
from depth_lib.results.files import os as storage_os
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, PAPER_MODELS, TOKENS, write_run

GSM8K = "toy-8l, gsm8k"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_os, "fsync", lambda descriptor: None)
        write_run(out, "gsm8k", "toy-8l", 8)
        write_run(out, "gsm8k", "<script><b>", 4, ["logit_lens"])
        write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"])
    return Study(out)


@pytest.fixture(scope="module")
def runs(study):
    return json.loads(explored(study, read_tables(study).intervals))


def figure(runs, run, title):
    (chosen,) = [one for one in runs if one["run"] == run]
    (found,) = [one for one in chosen["figures"] if title in one["title"]]
    return found


def test_a_map_holds_the_results_values_to_a_part_in_ten_thousand_of_their_range(study, runs):
    for title, probe, key in (
        ("erasure", "residual_erasure", "erasure_effect"),
        ("radients", "integrated_gradients", "igrads"),
        ("Turn of the residual", "relative_contribution", "first_change"),
    ):
        shown, truth = figure(runs, GSM8K, title), study["gsm8k", "toy-8l", probe][key].numpy()[:, :-1]
        steps = np.frombuffer(base64.b64decode(shown["values"]), "<u2").reshape(shown["shape"])
        np.testing.assert_allclose(shown["least"] + shown["step"] * steps, truth, atol=1e-4 * np.ptp(truth))
        assert shown["tokens"] == ([] if probe == "relative_contribution" else TOKENS[:-1])


def test_a_curve_holds_the_mean_and_each_prompts_own(study, runs):
    shown, lens = figure(runs, GSM8K, "KL of the lens"), study["gsm8k", "toy-8l", "logit_lens"]
    np.testing.assert_allclose(shown["mean"], lens["res_kl_divs"], rtol=1e-4)
    np.testing.assert_allclose(shown["prompts"], lens["res_kl_divs_sums"] / lens["n_tokens"][:, None], rtol=1e-4)
    found = read_tables(study).intervals.query("model == 'toy-8l' and dataset == 'gsm8k' and metric == 'kl'")
    assert shown["depth"] == found.ed.item() and shown["level"] == pytest.approx(0.5 * max(shown["mean"]))


def test_a_name_cannot_end_the_script(study):
    text = explored(study, read_tables(study).intervals)
    assert "<" not in text and any(one["run"].startswith("<script><b>") for one in json.loads(text))


def test_the_page_asks_the_network_for_nothing(study):
    page = report.write_report(study, read_tables(study)).read_text()
    assert page.count("<script") == 2 and not re.search(
        r"""(?:src|href)=["'](?!#|data:)|fetch\(|import\(|url\(""", page
    )


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright: make test-oracles")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module", params=[1180, 390], ids=["wide", "narrow"])
def opened(request, browser, study):
    """The report in a window of 1180 and of 390 pixels; nothing may be asked of a network, nothing go wrong."""
    path, wrong = report.write_report(study, read_tables(study)), []
    context = browser.new_context(viewport={"width": request.param, "height": 800}, has_touch=request.param < 640)
    tab = context.new_page()
    tab.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto(path.as_uri())
    yield tab
    assert wrong == []
    context.close()


def choose(tab, run, title):
    tab.select_option("#explore-run", label=run)
    titles = tab.eval_on_selector_all("#explore-what option", "all => all.map(one => one.textContent)")
    tab.select_option("#explore-what", label=next(one for one in titles if title in one))


def point(tab, across, down):
    """Moves the pointer to this share of a curve's inner box, and returns what is said there."""
    tab.locator("#explore-plot").scroll_into_view_if_needed()
    place = tab.locator("#explore-plot").bounding_box()
    x, y = 46 + across * (place["width"] - 56), 10 + down * (place["height"] - 50)
    tab.mouse.move(place["x"] + x, place["y"] + y)
    return tab.inner_text("#explore-said")


def test_pointing_at_a_map_says_layer_token_and_value(opened, study):
    choose(opened, GSM8K, "erasure")
    opened.locator("#explore-plot").scroll_into_view_if_needed()
    place = opened.locator("#explore-plot").bounding_box()
    effect = study["gsm8k", "toy-8l", "residual_erasure"]["erasure_effect"][:, :-1]
    n, m = effect.shape
    for l, t in ((0, 0), (5, 3), (8, m - 1)):
        x = 46 + (t + 0.5) * (place["width"] - 56) / m
        y = 10 + (n - l - 0.5) * (place["height"] - 88) / n
        opened.mouse.move(place["x"] + x, place["y"] + y)
        said = opened.inner_text("#explore-said")
        assert said.startswith(f"layer {l}, token {t} “{'␣' if TOKENS[t] == ' ' else TOKENS[t]}”: "), said
        assert float(said.split(": ")[1]) == pytest.approx(effect[l, t].item(), abs=2e-4)


def test_pointing_at_a_curve_says_layer_mean_spread_and_the_nearest_prompt(opened, study):
    choose(opened, GSM8K, "KL of the lens")
    said = point(opened, 3 / 7, 0.5)
    found = re.fullmatch(r"layer 3: mean (\S+); prompts (\S+) to (\S+); prompt (\d+): (\S+)", said)
    lens = study["gsm8k", "toy-8l", "logit_lens"]
    prompts = (lens["res_kl_divs_sums"] / lens["n_tokens"][:, None])[:, 3]
    mean, least, most, which, own = map(float, found.groups())
    assert mean == pytest.approx(lens["res_kl_divs"][3].item(), abs=2e-3)
    assert (least, most) == pytest.approx((prompts.min().item(), prompts.max().item()), abs=2e-3)
    assert own == pytest.approx(prompts[int(which)].item(), abs=2e-3)


def test_arrow_keys_do_what_the_pointer_does(opened, study):
    choose(opened, GSM8K, "erasure")
    opened.focus("#explore-plot")
    assert "Point at it" in opened.inner_text("#explore-said")
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        opened.keyboard.press(key)
    assert opened.inner_text("#explore-said").startswith("layer 1, token 1")


def test_another_run_keeps_the_figure_where_it_has_one(opened):
    choose(opened, GSM8K, "KL of the lens")
    opened.select_option("#explore-run", label="toy-8l, hellaswag")
    assert opened.input_value("#explore-what") == "KL of the lens"
    titles = opened.eval_on_selector_all("#explore-what option", "all => all.map(one => one.textContent)")
    assert not [title for title in titles if "erasure" in title]


def test_nothing_is_wider_than_the_window(opened):
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    drawn = opened.evaluate("document.getElementById('explore-plot').toDataURL().length")
    assert drawn > 5000


@pytest.mark.timeout(600)  # it draws every figure of 36 runs
def test_a_report_of_twelve_models_on_three_datasets_is_small_and_opens_in_three_seconds(
    browser, tmp_path, monkeypatch
):
    if not os.environ.get("REPORT_OF_36"):
        pytest.skip("takes a minute and measures seconds, so nothing may run beside it: make test-oracles")
    monkeypatch.setattr(storage_os, "fsync", lambda descriptor: None)
    for model, n_layers in PAPER_MODELS.items():
        for dataset in DATASETS:
            write_run(tmp_path, dataset, model, n_layers)
    study = Study(tmp_path)
    tables = read_tables(study)
    path = report.write_report(study, tables, report.draw_figures(study, tables))
    assert path.stat().st_size < 15e6
    tab = browser.new_page()
    start = time.perf_counter()
    tab.goto(path.as_uri(), wait_until="load")
    assert time.perf_counter() - start < 3 and "Effective depth" in tab.inner_text("#explore-said")
    print(f"{path.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.2f} s")
    assert len(tab.pdf()) > 100_000  # printed
    tab.close()
