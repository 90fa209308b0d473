"""The papers' figures by number or name: the right probe, the right keys, the published depth in grey."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

import depth_lib as dl
from depth_lib.effective_depth.tables import published_depths
from depth_lib.figures import KINDS
from depth_lib.figures.marks import PUBLISHED
from depth_lib.papers import FIGURES, HU
from depth_lib.results.schemas import MissingArtifact
from tests.figures.drawn import overlaps
from tests.report.studies import write_published
from tests.synthetic import result_of, save


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_every_number_draws_what_its_probe_returned_and_only_the_papers_keys():
    for number, (name, *which) in FIGURES.items():
        result = {"relative": np.eye(3), "best": np.arange(3)}
        if name != "linear_maps":
            result = result_of(KINDS[name].probe, 8)
        figure = dl.paper(number, result)
        assert f"Figure {number}." in figure._suptitle.get_text().replace("\n", " ")
        if which and which[0].endswith("tokens") and "change" not in name:
            (key,) = [key for key, label in KINDS[name].read.items() if label == which[0]]
            (panel,) = [ax for ax in figure.axes if ax.has_data() and ax.get_label() != "<colorbar>"]
            drawn, upper = np.ma.filled(panel.images[0].get_array(), np.nan), np.triu_indices(8, 1)
            assert np.allclose(drawn[upper], result[key].numpy()[upper])


def test_figure_3a_is_of_all_tokens_and_3b_of_future_ones_as_in_the_paper(toy, monkeypatch):
    prompts = dl.load_prompts("mquake", 1, source="sample")
    monkeypatch.setattr("depth_lib.papers.load_prompts", lambda *_, **__: prompts)
    for number, mode in (("3a", "all"), ("3b", "future")):
        truth = dl.layer_effects(toy, prompts, mode)[f"max_{mode}_layer"].numpy()
        image = dl.paper(number, toy).axes[0].images[0].get_array()
        upper = np.triu_indices(4, 1)
        assert np.allclose(np.ma.filled(image, np.nan)[upper], truth[upper], atol=1e-5)


def test_of_a_result_with_the_other_tokens_only_these_are_drawn_and_named(tmp_path):
    future = result_of("layer_effects", 8, 3)
    future = {key: value for key, value in future.items() if "all" not in key}
    save(tmp_path, "toy-8l", "layer_effects", result=future)
    for of in (future, tmp_path):
        figure = dl.paper("3a", of)
        title = figure._suptitle.get_text().replace("\n", " ")
        assert title.startswith("Figure 3a. ") and "future tokens" in title and "all tokens" not in title
        (image,) = [ax.images[0] for ax in figure.axes if ax.images]
        drawn, upper = np.ma.filled(image.get_array(), np.nan), np.triu_indices(8, 1)
        assert np.allclose(drawn[upper], future["max_future_layer"].numpy()[upper])


def test_a_model_is_measured_on_the_prompts_that_ship(toy, monkeypatch):
    prompts, asked = ["5 + 7 = 12", "the cat sat"], []  # in their place
    monkeypatch.setattr("depth_lib.papers.load_prompts", lambda *of, **how: asked.append((*of, how)) or prompts)
    figure = dl.paper("4a", toy)
    assert asked == [("gsm8k", 10, {"source": "sample", "llm": toy})]
    truth = dl.logit_lens(toy, prompts, all_measures=False)["res_kl_divs"]
    bars = [patch.get_data().values for patch in figure.axes[0].patches if hasattr(patch, "get_data")]
    assert any(len(values) == 4 and np.allclose(values, truth, atol=1e-4) for values in bars)


def test_prompts_of_ones_own_that_are_too_long_are_refused(toy):
    with pytest.raises(ValueError, match="prompt 0 has [0-9]+ tokens, but the model has 2048 positions"):
        dl.paper("4a", toy, ["5 + 7 = " * 400, "5 + 7 = 12"])


def test_every_panel_of_the_papers_twelve_has_its_published_depth_and_the_legend_names_it(tmp_path):
    published = published_depths().set_index(["model", "dataset", "rule"])
    for model, dataset in {row[:2] for row in published.index if row[1] != "aime24"}:
        layers = int(published.layers[model, dataset, "kl"])
        save(tmp_path, model, "logit_lens", dataset=dataset, result=result_of("logit_lens", layers, 3))
    figure = dl.paper("gsm8k_hellaswag_logit_lens_kl", tmp_path)
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert len(panels) == 24 and figure.get_size_inches()[0] <= 7.3 and figure.get_size_inches()[1] <= 10.6
    for ax in panels:
        name, dataset = "".join(ax.get_title().split("\n")[:-1]), ax.get_title().split("\n")[-1]
        (line,) = [line for line in ax.lines if line.get_label() == PUBLISHED]
        assert line.get_xdata()[0] == published.ed[name, dataset, "kl"]
    assert PUBLISHED in {text.get_text() for text in figure.legends[0].texts}
    places = [(ax.get_subplotspec().rowspan.start, ax.get_subplotspec().colspan.start) for ax in panels]
    assert places == [(row, column) for row in range(3) for column in range(8)]


def test_maps_of_a_folder_are_laid_out_in_the_papers_grid(tmp_path):
    models = {"Qwen2.5-Math-1.5B": 28, "Qwen2.5-1.5B-Instruct": 28, "Qwen2.5-7B-Instruct": 28}
    for model, layers in models.items():
        save(tmp_path, model, "layer_effects", result=result_of("layer_effects", layers, 3))
    width, height = dl.paper("3a", tmp_path).get_size_inches()
    assert width <= 7.3 and height < 2 * width


def test_what_is_no_figure_or_not_there_is_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match=f"unknown figure '9z'; use one of 2a, .*{[*HU][-1]}"):
        dl.paper("9z", {})
    with pytest.raises(ValueError, match="unknown figure '3'; use one of 3a, 3b$"):
        dl.paper("3", {})
    for number, why in (("1", "not drawn: it shows benchmark scores"), ("9", "draw 6b")):
        with pytest.raises(ValueError, match=why):
            dl.paper(number, tmp_path)
    with pytest.raises(ValueError, match="has a panel per model; use a folder of results"):
        dl.paper("gsm8k_logit_lens_kl", result_of("logit_lens", 8))
    with pytest.raises(ValueError, match='needs a result of relative_contribution with "att_cos"'):
        dl.paper("2b", result_of("logit_lens", 8))
    save(tmp_path, "toy-8l", "logit_lens")
    with pytest.raises(MissingArtifact, match="has no relative_contribution on gsm8k; run: .*sweep"):
        dl.paper("2b", tmp_path)


@pytest.mark.slow
def test_figure_8_of_a_folder_has_each_of_its_maps_and_without_any_says_how_one_is_made(toy, tmp_path):
    with pytest.raises(MissingArtifact) as missing:
        dl.paper("8", tmp_path)
    made = re.search("dl.linear_maps.small, large, texts..save..(.*)..$", str(missing.value))[1]
    texts = [f"{n} + {m} = {n + m} apples and {m} pears" for n in range(6) for m in range(6)]
    maps = dl.linear_maps(toy, toy, texts)
    assert maps.save(made) == tmp_path / "linear_maps/linear_map_toy-4l_to_toy-4l.pt"
    dl.linear_maps(toy, toy, texts, what="contribution").save(made)
    panels = [ax for ax in dl.paper("8", str(tmp_path)).axes if ax.images]
    titles = ["toy-4l_to_toy-4l", "toy-4l_to_toy-4l@what=contribution"]
    assert ["".join(ax.get_title().split()) for ax in panels] == titles
    assert [ax.images[0].get_array().shape for ax in panels] == [(5, 5), (4, 4)]
    assert np.allclose(panels[0].images[0].get_array(), maps["relative"])


def test_the_command_for_a_missing_figure_names_its_question(tmp_path):
    save(tmp_path, "toy-8l", "residual_erasure")
    path = save(tmp_path, "toy-8l", "integrated_gradients")
    path.rename(path.with_name(f"{path.stem}_5-7-0a59504e.pt"))  # of a different question
    for figure, pair, option in (("6d", "spouse", " --pair spouse"), ("6a", "sum", "")):
        with pytest.raises(MissingArtifact, match=f"for PAIR={pair} on gsm8k; run: .*--datasets gsm8k{option} --out"):
            dl.paper(figure, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["gsm8k_hellaswag_cosine_similarity", "gsm8k_logit_lens_overlap"])
def test_no_title_of_a_papers_figure_is_cut_and_a_result_without_its_keys_says_which(figure, tmp_path):
    write_published(tmp_path)
    assert overlaps(dl.paper(figure, tmp_path)) == []
    with pytest.raises(MissingArtifact, match='no "norm_att" or .* in its relative_contribution .*run: .* --replace'):
        dl.paper("15", tmp_path)
