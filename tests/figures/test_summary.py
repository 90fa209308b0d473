"""The figures of answers and of the paper: what they show, how they are laid out, and that a person can read them."""

import warnings

import numpy as np
import pytest

from depth_lib.effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from depth_lib.figures.paper import PAPER_FIGURES, paper_figure, save_paper_figures
from depth_lib.figures.proxies import proxies_figure
from depth_lib.figures.summary import (
    intervals_figure,
    ratio_by_size_figure,
    ratio_by_task_figure,
    ratio_by_training_figure,
    save_summary_figures,
    thresholds_figure,
)
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import MissingArtifact, artifact_path
from depth_lib.results.study import Study, read_name
from tests.figures.texts import overlaps
from tests.synthetic import DATASETS, PAPER_MODELS, result_of, write_run

MODELS = {"one": {"toy-8l": 8}, "three": {"toy-4l": 4, "toy-8l": 8, "toy-16l": 16}, "paper": PAPER_MODELS}
QUESTIONS = (intervals_figure, ratio_by_size_figure, ratio_by_training_figure, ratio_by_task_figure)


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    for i, (model, n_layers) in enumerate(MODELS[request.param].items()):
        for dataset in DATASETS:
            probes = ("relative_contribution", "logit_lens", "layer_effects")
            if dataset == "gsm8k":
                probes += ("residual_erasure", "integrated_gradients")
            write_run(out, dataset, model, n_layers, probes, n_examples=4, seed=10 * i)
    return out


@pytest.fixture(scope="module")
def study(folder):
    return Study(folder, datasets=DATASETS)


@pytest.fixture(scope="module")
def stability(study):
    return depths_with_intervals(study, depths(study))


@pytest.mark.parametrize("draw", QUESTIONS)
def test_no_text_of_an_answer_lies_on_another_or_beyond_the_edge(stability, draw):
    assert overlaps(draw(stability)) == []


def test_no_text_of_the_thresholds_lies_on_another(study):
    assert overlaps(thresholds_figure(depths_by_threshold(study, depths(study)), "gsm8k")) == []


def test_no_text_of_a_paper_figure_lies_on_another_and_it_is_as_wide_as_a_page(folder, study):
    fullest = ["gsm8k_cosine_similarity", "gsm8k_integrated_gradients", "gsm8k_hellaswag_logit_lens_overlap"]
    for name in fullest if folder.name.startswith("paper") else PAPER_FIGURES:
        figure = paper_figure(name, study)
        assert overlaps(figure) == [], name
        assert figure.get_figwidth() <= 7.8


def test_there_are_the_papers_twelve_figures():
    probes = ("cosine_similarity", "layer_effects", "output_change", "logit_lens_kl", "logit_lens_overlap")
    alone = {f"gsm8k_{name}" for name in (*probes, "residual_erasure", "integrated_gradients")}
    assert PAPER_FIGURES.keys() == alone | {f"gsm8k_hellaswag_{name}" for name in probes}


def panels(figure):
    return [ax for ax in figure.axes if ax.get_title()]


def test_the_papers_models_stand_in_a_grid_of_types_by_sizes(folder, study):
    if folder.name.startswith("paper"):
        alone, both = (
            panels(paper_figure(name, study)) for name in ("gsm8k_logit_lens_kl", "gsm8k_hellaswag_logit_lens_kl")
        )
        tops = [sorted({round(ax.get_position().y0, 3) for ax in shown}, reverse=True) for shown in (alone, both)]
        assert [len(rows) for rows in tops] == [3, 3] and (len(alone), len(both)) == (12, 24)
        first_row = [ax.get_title() for ax in both if round(ax.get_position().y0, 3) == tops[1][0]]
        assert first_row == [
            f"DS-R1-Qwen-{size}B\n{dataset}" for size in ("1.5", "7", "14", "32") for dataset in ("gsm8k", "hellaswag")
        ]
        assert [ax.get_title() for ax in alone[8:]] == [
            "Qwen2.5-Math-1.5B",
            "Qwen2.5-Math-7B",
            "Qwen2.5-14B",
            "Qwen2.5-32B",
        ]
    else:
        assert [ax.get_title() for ax in panels(paper_figure("gsm8k_logit_lens_kl", study))] == list(
            MODELS[folder.name[:-1]]
        )


def test_a_paper_figure_without_one_of_its_datasets_names_it_and_is_left_out(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    with pytest.raises(MissingArtifact, match='no logit_lens artifacts for hellaswag .* DATASETS="hellaswag"'):
        paper_figure("gsm8k_hellaswag_logit_lens_kl", Study(tmp_path))
    written = save_paper_figures(Study(tmp_path))
    assert {path.stem for path in written} == {"gsm8k_logit_lens_kl", "gsm8k_logit_lens_overlap"}


@pytest.mark.parametrize(
    ("model", "kind", "billions"),
    [
        ("DeepSeek-R1-Distill-Qwen-7B", "R1-distill", 7),
        ("Qwen2.5-Math-1.5B", "base", 1.5),
        ("toy-8l", "base", None),
        ("Llama-3.1-70B-Instruct", "instruct", 70),
        ("Qwen2.5-14B-Instruct", "instruct", 14),
    ],
)
def test_a_models_name_says_its_training_and_size(model, kind, billions):
    assert (read_name(model).training, read_name(model).billions) == (kind, billions)


def test_size_is_parameters_where_all_names_say_it_and_blocks_where_not(stability, folder):
    label = ratio_by_size_figure(stability).axes[0].get_xlabel()
    assert label == ("Parameters (billions)" if folder.name.startswith("paper") else "Blocks")


def skipped(effects, folder):
    """The figure of one run whose block influence ranks layers as the effects do, and its contribution against them."""
    real, contribution = effects.get("all_kl", effects["max_all_out"]).flatten(), result_of("relative_contribution", 8)
    contribution |= {"io_cos": 1 - real**3, "rc_layer": -real}
    for probe, result in (("layer_effects", effects), ("relative_contribution", contribution)):
        save_artifact(artifact_path(folder, "gsm8k", "toy-8l", probe, 10), result, {})
    return proxies_figure(Study(folder)), contribution


@pytest.mark.parametrize("key", ["all_kl", "max_all_out"])
def test_a_proxy_that_ranks_layers_as_skipping_does_has_a_rank_correlation_of_one(tmp_path, key):
    effects = result_of("layer_effects", 8)
    effects["all_kl"] = effects["all_kl"].flip(0)  # so that it is no other's ranks
    if key != "all_kl":
        del effects["all_kl"]
    figure, contribution = skipped(effects, tmp_path)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["rank correlation 1.00", "rank correlation -1.00", "no rank correlation"]
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), effects[key].flatten())
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), 1 - contribution["io_cos"], rtol=1e-6)
    assert ("nats, mean" if key == "all_kl" else "norm when skipped, largest") in figure.axes[0].get_ylabel()


def test_models_differ_in_colour_and_datasets_in_shape_where_proxies_are_compared(study):
    figure = proxies_figure(study)
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert len({colour for colour, _ in looks}) == len(study.models)
    assert len({shape for _, shape in looks}) == len(study.datasets)
    assert len(looks) == len(study.models) * len(study.datasets)
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {*study.models, *study.datasets}


def test_no_text_of_the_proxies_lies_on_another(study):
    assert overlaps(proxies_figure(study)) == []


def test_saving_writes_a_vector_and_an_image_of_each_and_no_warning(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ["relative_contribution", "logit_lens"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = Study(tmp_path)
        found = depths(study)
        tables = depths_with_intervals(study, found), depths_by_threshold(study, found)
        paths = save_summary_figures(study, *tables)
    names = {"ratio_intervals", "thresholds_gsm8k"}
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("pdf", "png")}
    assert all(path.read_bytes()[:4] in (b"%PDF", b"\x89PNG") for path in paths)
