"""The papers' figures by number or name: the right probe, the right keys, the published depth in grey."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import depth_lib as dl
from depth_lib.effective_depth.published import published_depths
from depth_lib.figures import KINDS, PAPER_FIGURES
from depth_lib.papers import FIGURES
from tests.synthetic import result_of, write_run


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_every_number_draws_what_its_probe_returned_and_only_the_papers_keys():
    for number, row in FIGURES.items():
        result = {"relative": np.eye(3), "best": np.arange(3)}
        if row.kind in KINDS:
            result = result_of(KINDS[row.kind].probe, 8)
        figure = dl.paper(number, result)
        assert f"Figure {number}." in figure._suptitle.get_text().replace("\n", " ")
        if row.key and row.kind != "output_change":
            (panel,) = [ax for ax in figure.axes if ax.has_data() and ax.get_label() != "<colorbar>"]
            drawn, upper = np.ma.filled(panel.images[0].get_array(), np.nan), np.triu_indices(8, 1)
            assert np.allclose(drawn[upper], result[row.key].numpy()[upper])
        plt.close(figure)


def test_figure_3a_is_of_all_tokens_and_3b_of_future_ones_as_in_the_paper(toy, monkeypatch):
    prompts = dl.load_prompts("gsm8k", 1, source="sample")
    monkeypatch.setattr("depth_lib.papers.load_prompts", lambda *_, **__: prompts)
    for number, mode in (("3a", "all"), ("3b", "future")):
        truth = dl.layer_effects(toy, prompts, mode)[f"max_{mode}_layer"].numpy()
        image = dl.paper(number, toy).axes[0].images[0].get_array()
        upper = np.triu_indices(4, 1)
        assert np.allclose(np.ma.filled(image, np.nan)[upper], truth[upper], atol=1e-5)
    with pytest.raises(ValueError, match='no max_all_layer; give one of mode="all"'):
        dl.paper("3a", {"max_future_layer": truth})


def test_a_model_is_measured_on_the_prompts_that_ship(toy):
    figure = dl.paper("4a", toy)
    truth = dl.logit_lens(toy, dl.load_prompts("gsm8k", 10, source="sample"), all_measures=False)["res_kl_divs"]
    bars = [patch.get_data().values for patch in figure.axes[0].patches if hasattr(patch, "get_data")]
    assert any(len(values) == 4 and np.allclose(values, truth, atol=1e-4) for values in bars)


def test_a_name_draws_a_panel_per_model_with_the_published_depth_in_grey(tmp_path):
    model = "Qwen2.5-7B-Instruct"
    write_run(tmp_path, "gsm8k", model, 28)
    write_run(tmp_path, "gsm8k", "toy-8l", 8)
    figure = dl.paper("gsm8k_logit_lens_kl", tmp_path)
    published = published_depths().set_index(["model", "dataset", "metric"]).ed[model, "gsm8k", "kl"]
    grey = [line.get_xdata()[0] for ax in figure.axes for line in ax.lines if line.get_label() == "published"]
    assert grey == [published]
    both = dl.paper("4a", tmp_path)
    assert {f"{model}, gsm8k", "toy-8l, gsm8k"} <= {text.get_text() for text in both.legends[0].texts}


def test_what_is_no_figure_or_not_there_is_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match=f"no figure is called '9z'; there are 2a, .*{[*PAPER_FIGURES][-1]}"):
        dl.paper("9z", {})
    with pytest.raises(ValueError, match="no figure is called '3'; there are 3a, 3b$"):
        dl.paper("3", {})
    for number, why in (("1", "not drawn: it shows benchmark scores"), ("9", "draw 6b"), ("8", "is of two models")):
        with pytest.raises(ValueError, match=why):
            dl.paper(number, tmp_path)
    with pytest.raises(ValueError, match="has a panel per model: give a folder of results"):
        dl.paper("gsm8k_logit_lens_kl", result_of("logit_lens", 8))
    with pytest.raises(ValueError, match="it is relative_contribution's"):
        dl.paper("2b", result_of("logit_lens", 8))
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ("logit_lens",))
    with pytest.raises(dl.MissingArtifact, match="no relative_contribution artifacts for Cosine"):
        dl.paper("2b", tmp_path)
