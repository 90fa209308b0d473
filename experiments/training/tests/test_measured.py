"""The committed measurements of the twelve toys: those of the weights that ship, and drawn as they are."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from depth_lib import load_model
from experiments.training import measure, summary
from experiments.training.experiment import TOYS
from experiments.training.figure import training_figure
from experiments.training.tasks import held_out_examples

NAMES = sorted(path.name for path in TOYS.iterdir())


@pytest.fixture(scope="module")
def committed():
    return summary.load_measured()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_committed_accuracies_are_those_of_the_weights_that_ship(name, committed):
    llm = load_model(TOYS / name, dtype="float32")
    kind, loss = name.split("-")[1:]
    rows = committed[(committed.kind == kind) & (committed.loss == loss) & (committed.seed == 0)]
    rows = rows[(rows.task == "sums") & (rows.quantity == "accuracy")].set_index("level")
    for level in (3, 6, 8):
        problems = held_out_examples("sums", [level], measure.ANSWERED)
        right = measure.exact_matches(llm._module, llm.tokenizer, problems)
        assert rows.n[str(level)] == len(right)
        one = 1.5 / len(right)  # a tie may break the other way on another machine
        assert rows.value[str(level)] == pytest.approx(np.mean(right), abs=one)


def test_a_value_that_only_one_side_has_is_an_infinite_difference(committed):
    assert summary.largest_difference(committed, committed) == 0
    shifted = committed.assign(value=committed.value + 0.25)
    assert summary.largest_difference(shifted, committed) == pytest.approx(0.25)
    assert summary.largest_difference(committed, committed.assign(value=np.nan)) == math.inf


def test_rows_that_are_measured_again_replace_their_own_and_no_others(committed):
    again = committed[committed.seed == 0].sample(frac=1, random_state=0).assign(low=0.1234567, n=7)
    found = summary.replaced(committed, again)
    assert found[found.seed == 0][["low", "n"]].eq([0.12346, 7]).all(axis=None)
    pd.testing.assert_frame_equal(found.drop(columns=["low", "n"]), committed.drop(columns=["low", "n"]))
    pd.testing.assert_frame_equal(found[found.seed > 0], committed[committed.seed > 0])


@pytest.mark.slow
def test_the_figure_has_a_panel_a_quantity_and_a_line_a_toy_with_its_values(committed):
    found = summary.over_seeds(committed)
    for task, panels in (("sums", 8), ("nested", 4)):
        figure = training_figure(found, task)
        shown = [ax for ax in figure.axes if ax.get_title()]
        assert len(shown) == panels and all(len(ax.containers) == 4 for ax in shown)
        of = found[(found.task == task) & (found.quantity == "accuracy") & found.level.str.isdigit()]
        for bars, (_, one) in zip(shown[0].containers, of.groupby(["kind", "loss"]), strict=True):
            assert list(bars[0].get_ydata()) == pytest.approx(list(one.value))
        plt.close(figure)
