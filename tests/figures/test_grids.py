"""Figures of a study have a panel for each of its runs, can be read, and are saved whole."""

import importlib
import itertools
import re

import matplotlib.pyplot as plt
import pytest

from depth_lib.figures import KINDS, PAPER_FIGURES, grid, paper_figure, plot, save_figures, save_paper_figures
from depth_lib.results.schemas import MissingArtifact
from depth_lib.results.study import Study
from tests.figures.drawn import overlaps, panels
from tests.marks import others_slow, slow
from tests.synthetic import DATASETS, result_of, save, write_run

WORDS = ["<|begin_of_text|>", *(f"Ġ{word}" for word in "Tom has 12 extraordinarily small apples , and $ 5 .".split())]


@pytest.mark.parametrize(
    "name",
    others_slow(["cosine", "layer_effects", "importance_by_level", "integrated_gradients"], ["integrated_gradients"]),
)
def test_no_text_lies_on_another_or_on_a_panel_for_models_of_4_30_and_80_blocks(sizes, name):
    assert overlaps(grid(name, sizes)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gsm8k_integrated_gradients", "gsm8k_hellaswag_layer_effects", "gsm8k_cosine_similarity"]
)
def test_no_text_lies_on_another_with_the_papers_twelve_models(paper, name):
    assert overlaps(paper_figure(name, paper)) == []


@pytest.mark.parametrize("repeats", [1, slow(6)])
def test_no_text_overlaps_with_long_tokens(tmp_path, repeats):
    tokens = WORDS * repeats + ["28"]
    for model in ("toy-4l", "Llama-3.1-70B-Instruct"):
        save(tmp_path, model, "residual_erasure", result=result_of("residual_erasure", 4, tokens=tokens))
    assert overlaps(grid("residual_erasure", Study(tmp_path))) == []


def test_each_run_has_its_panel_and_a_dataset_that_all_share_stands_in_the_title(sizes):
    figure = grid("lens_kl", sizes)
    assert [ax.get_title() for ax in panels(figure)] == [f"{m}\n{d}" for m in sizes.models for d in DATASETS]
    assert panels(figure)[0].get_subplotspec().get_gridspec().get_geometry() == (3, 3)  # no half-empty rows
    figure = grid("lens_settled", Study(sizes.folder, datasets=["gsm8k"]))
    assert figure.get_suptitle() == "How the logit lens settles: gsm8k"
    assert [ax.get_title().split("\n")[0] for ax in panels(figure)] == sizes.models


def test_a_question_is_in_the_title_and_asked_once_per_model_whatever_dataset_it_ran_beside(tmp_path):
    for dataset, model in (("gsm8k", "toy-4l"), ("aime24", "toy-4l"), ("aime24", "toy-8l")):
        asked = {"question": "5 + 7 = ", "answer": "12"}
        save(tmp_path, model, "residual_erasure", 4, dataset, settings=asked)
    figure = grid("residual_erasure", Study(tmp_path))
    assert figure.get_suptitle() == "Residual erasure: 5 + 7 = 12"
    assert [ax.get_title() for ax in panels(figure)] == ["toy-4l", "toy-8l"]
    called = result_of("residual_erasure", 4) | {"tokens": ["<s>", "5", "Ġ+", "Ġ7"]}
    assert plot("residual_erasure", called).figure.get_suptitle().endswith(": 5 + 7")


def test_an_empty_folder_is_an_error_and_a_kind_without_results_is_left_out(tmp_path, monkeypatch):
    with pytest.raises(MissingArtifact, match="run: .*depth-lib sweep"):
        save_figures(Study(tmp_path))
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    with pytest.raises(MissingArtifact, match="no residual_erasure artifacts .* under .* --probes residual_erasure"):
        grid("residual_erasure", Study(tmp_path))
    with pytest.raises(MissingArtifact, match="no logit_lens artifacts for hellaswag .* --datasets hellaswag"):
        paper_figure("gsm8k_hellaswag_logit_lens_kl", Study(tmp_path))
    module = importlib.import_module("depth_lib.figures.grid")  # the package has a function of this name
    monkeypatch.setattr(module, "save", lambda figure, stem: [stem])
    stale = tmp_path / "figures" / "cosine.png"
    stale.parent.mkdir()
    stale.touch()
    lens = {name for name, kind in KINDS.items() if kind.probe == "logit_lens"}
    assert {path.name for path in save_figures(Study(tmp_path))} == lens and not stale.exists()
    papers = {path.name for path in save_paper_figures(Study(tmp_path))}
    assert papers == {"gsm8k_logit_lens_kl", "gsm8k_logit_lens_overlap"}


def test_files_have_vector_curves_and_image_maps_and_the_same_bytes_of_the_same_results(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-8l", 8, ["residual_erasure", "attention_removal"], n_examples=3)
    plt.close("all")
    contents = {path: path.read_bytes() for path in save_figures(Study(tmp_path))}
    assert {path.suffix for path in contents} == {".pdf", ".png"}
    for path, content in contents.items():
        if path.suffix == ".pdf":
            # A colour bar is an image or a patch; only a heat map has an image as large as itself.
            images = [int(width) for width in re.findall(rb"/Width (\d+)", content)]
            assert bool(images and max(images) > 100) == (path.stem == "residual_erasure"), path.name
        else:
            assert plt.imread(path)[..., :3].std() > 0.02
    assert {path: path.read_bytes() for path in save_figures(Study(tmp_path))} == contents
    assert plt.get_fignums() == []


def test_the_papers_models_stand_in_a_grid_of_types_by_sizes(paper):
    probes = ("cosine_similarity", "layer_effects", "output_change", "logit_lens_kl", "logit_lens_overlap")
    alone = {f"gsm8k_{name}" for name in (*probes, "residual_erasure", "integrated_gradients")}
    assert PAPER_FIGURES.keys() == alone | {f"gsm8k_hellaswag_{name}" for name in probes}
    both = panels(paper_figure("gsm8k_hellaswag_layer_effects", paper))
    places = [(ax.get_subplotspec().rowspan.start, ax.get_subplotspec().colspan.start) for ax in both]
    assert places == list(itertools.product(range(3), range(8)))
    titles = ["DS-R1-Qwen-1.5B\ngsm8k", "DS-R1-Qwen-1.5B\nhellaswag", "DS-R1-Qwen-7B\ngsm8k"]
    assert [ax.get_title() for ax in both[:3]] == titles


def test_a_type_that_lacks_a_size_leaves_its_place_empty(paper):
    three = [model for model in paper.models if "32B" not in model and model != "Qwen2.5-7B-Instruct"]
    shown = panels(paper_figure("gsm8k_logit_lens_kl", Study(paper.folder, three)))
    rows = [[ax.get_title() for ax in shown[start : start + 3] if ax.get_visible()] for start in (0, 3, 6)]
    assert [len(row) for row in rows] == [3, 2, 3] and len(shown) == 9
    assert all(title.startswith("DS-R1-") for title in rows[0])
    assert all(title.endswith("-Instruct") for title in rows[1])


@pytest.mark.parametrize("name", ["cosine", "layer_effects", "lens_kl"])
def test_figures_of_the_papers_twelve_models_fit_a_page_each_dataset_alone(paper, name, monkeypatch):
    module, drawn = importlib.import_module("depth_lib.figures.grid"), {}  # the package has a function of this name
    monkeypatch.setattr(module, "KINDS", {name: KINDS[name]})
    monkeypatch.setattr(module, "save", lambda figure, stem: drawn.setdefault(stem.name, figure) and [])
    save_figures(paper)
    assert list(drawn) == [f"{name}_hellaswag", f"{name}_gsm8k"]
    parts = len(KINDS[name].panels(paper["gsm8k", paper.models[0], KINDS[name].probe]))
    for figure in drawn.values():
        assert figure.get_figheight() <= 10.6 and figure.get_figwidth() <= 7.3 and len(panels(figure)) == 12 * parts


def test_what_is_missing_is_an_empty_panel_that_says_so(tmp_path):
    write_run(tmp_path, "gsm8k", "toy-4l", 4, ["logit_lens"], n_examples=3)
    write_run(tmp_path, "aime24", "toy-8l", 8, ["logit_lens"], n_examples=3)
    shown = panels(grid("lens_kl", Study(tmp_path)))
    assert [[text.get_text() for text in ax.texts] for ax in shown] == [[], ["missing"], ["missing"], []]
