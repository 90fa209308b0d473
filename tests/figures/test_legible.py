"""No text of a figure lies on another, whatever is drawn."""

import pytest

from depth_lib.figures.grids import grid
from depth_lib.figures.kinds import KINDS
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.figures.conftest import write_models
from tests.figures.texts import assert_modest_titles, overlaps
from tests.synthetic import PAPER_MODELS, result_of

CRAMPED = ("layer_effects", "integrated_gradients")  # the narrowest panels, and those with most around them
WORDS = ["<|begin_of_text|>", *(f"Ġ{word}" for word in "Tom has 12 extraordinarily small apples , and $ 5 .".split())]


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("paper"), PAPER_MODELS, probes=CRAMPED)


@pytest.mark.parametrize("folder", ["one", "toys"])
@pytest.mark.parametrize("name", KINDS)
def test_no_text_lies_on_another_on_a_panel_or_beyond_the_edge(request, folder, name):
    assert overlaps(grid(name, Study(request.getfixturevalue(folder)))) == []


@pytest.mark.parametrize("name", ["cosine", "layer_effects_modes", "residual_erasure"])
def test_titles_are_hardly_larger_than_the_numbers_at_the_axes(toys, name):
    assert_modest_titles(grid(name, Study(toys)))


@pytest.mark.parametrize("name", CRAMPED)
def test_no_text_overlaps_with_twelve_models(paper, name):
    assert overlaps(grid(name, Study(paper))) == []


@pytest.mark.parametrize("name", ["residual_erasure", "integrated_gradients"])
@pytest.mark.parametrize("repeats", [1, 3, 6])
def test_no_text_overlaps_with_long_tokens(tmp_path, name, repeats):
    probe, tokens = KINDS[name].probe, WORDS * repeats + ["28"]
    for model in ("toy-4l", "Llama-3.1-70B-Instruct"):
        path = artifact_path(tmp_path, "gsm8k", model, probe, 10)
        save_artifact(path, result_of(probe, 4, tokens=tokens), {})
    assert overlaps(grid(name, Study(tmp_path))) == []
