"""Figures to look into show the numbers that the printed ones show, with the same limits, and say what is hovered."""

import importlib

import numpy as np
import pytest
from matplotlib.figure import Figure

import depth_lib as dl
from depth_lib.figures import KINDS, card_figure, explore, plot
from depth_lib.figures.marks import Heat
from depth_lib.results.schemas import MissingArtifact
from depth_lib.results.study import Study
from tests.report.test_conclusions import depths_of
from tests.synthetic import result_of, write_run

HEAT = [name for name, kind in KINDS.items() if isinstance(kind, Heat)]


def shown(figure):
    return [trace for trace in figure.data if trace.visible]


@pytest.mark.parametrize("name", HEAT)
def test_every_heat_map_has_the_cells_and_the_limits_of_its_kind(name):
    kind, result = KINDS[name], result_of(KINDS[name].probe, 8)
    traces = shown(explore(name, {"mine": result}))
    panels = [kind.cells(panel) for panel in kind.panels(result).values()]
    assert len(traces) == len(panels) and sum(trace.showscale for trace in traces) == 1
    for trace, cells in zip(traces, panels, strict=True):
        np.testing.assert_allclose(np.asarray(trace.z, float), np.asarray(cells, float), rtol=1e-6)
        assert (trace.zmin, trace.zmax) == pytest.approx(kind.limits or kind.ends(cells))


def test_hovering_tells_layer_token_and_value():
    (trace,) = explore("residual_erasure", {"mine": result_of("residual_erasure", 8)}).data
    assert trace.hovertemplate.startswith("input of block %{y}<br>token %{x}<br>probability difference norm %{z")
    assert list(trace.x[:3]) == ["0 BOS", "1 5", "2 ␣"]
    (angle,) = explore("angular", {"mine": result_of("relative_contribution", 8)}).data
    assert angle.hovertemplate.startswith(
        "from: input of block %{y}<br>to: input of block %{x}<br>angular distance / π"
    )


def test_a_menu_shows_one_run_at_a_time(tmp_path):
    for model, n_layers in (("toy-4l", 4), ("toy-8l", 8)):
        write_run(tmp_path, "gsm8k", model, n_layers, ["layer_effects", "residual_erasure"], n_examples=3)
    figure = explore("layer_effects", Study(tmp_path))
    first, second = figure.layout.updatemenus[0].buttons
    assert [first.label, second.label] == ["toy-4l, gsm8k", "toy-8l, gsm8k"]
    assert [len(trace.z) for trace in shown(figure)] == [4, 4]
    assert second.args[0]["visible"] == [False, False, True, True]
    asked = explore("residual_erasure", Study(tmp_path)).layout.updatemenus[0].buttons
    assert [button.label for button in asked] == ["toy-4l", "toy-8l"]
    with pytest.raises(MissingArtifact, match="no integrated_gradients artifacts"):
        explore("integrated_gradients", Study(tmp_path))
    with pytest.raises(ValueError, match="needs max_future_layer or max_all_layer, and the result mine has"):
        explore("layer_effects", {"mine": result_of("logit_lens", 4)})


def test_the_lens_as_a_table_has_the_likeliest_token_of_every_layer_and_place_and_a_menu_of_texts(toy):
    texts = {text: dl.answer_lens(toy, text[0], text[1:]) for text in ("5 + 7 = 12", "3 + 1 = 4")}
    figure = explore("lens_table", texts)
    (trace,) = shown(figure)
    assert [button.label for button in figure.layout.updatemenus[0].buttons] == [*texts]
    result = texts["5 + 7 = 12"]
    np.testing.assert_array_equal(trace.z, result["answer_kl"])
    assert trace.text[-1].tolist() == [five[0].strip() or "␣" for five in result["top_tokens"][-1]]
    assert not result["answer_kl"][-1].any() and list(trace.x[-2:]) == ["7 1", "8 2"]
    written = [text.get_text() for text in plot("lens_table", result).texts]
    assert written == trace.text.ravel().tolist()


def test_without_plotly_and_of_curves_it_is_what_is_printed(monkeypatch):
    assert isinstance(explore("lens_kl", {"mine": result_of("logit_lens", 8)}), Figure)
    module = importlib.import_module("depth_lib.figures.explore")  # the package has a function of this name
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    figure = explore("layer_effects", {"mine": result_of("layer_effects", 8)})
    assert isinstance(figure, Figure) and len([ax for ax in figure.axes if ax.images]) == 2


def test_the_card_has_a_dot_per_model_and_rule_beside_the_twelve():
    runs = {("mine", "gsm8k"): 0.6, ("mine", "aime24"): 0.7, ("mine", "hellaswag"): 0.9, ("other", "gsm8k"): 0.2}
    figure = card_figure(depths_of(runs))
    dots = {line.get_label(): line.get_xdata() for line in figure.axes[0].lines}
    for model, ratio in (("mine", 0.7), ("other", 0.2)):
        np.testing.assert_allclose(dots[model], [np.nan, ratio, np.nan])  # cosine, KL, overlap
    assert len(dots["the papers' twelve"]) == 12
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mine", "other", "the papers' twelve"]
    assert card_figure(depths_of({("raw", "gsm8k"): None})) is None
