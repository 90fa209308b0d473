"""The benchmark: its rivals equal the package's probes, its floor counts what torch counts, its table is written."""

from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import floor, ndif_cost
from benchmarks.__main__ import main, write_docs
from benchmarks.run import largest_difference, spread
from benchmarks.shapes import model_of
from benchmarks.workloads import workloads


@pytest.fixture(scope="module")
def llm():
    return model_of("tiny")


@pytest.fixture(scope="module")
def makers(llm):
    return workloads(llm, "tiny")


@pytest.mark.slow
def test_both_rivals_equal_the_package_and_the_table_is_written_into_a_page(tmp_path):
    table = main("tiny", size="tiny", n_layers=2, rounds=1)
    assert table.startswith("tiny, float32, ") and torch.__version__ in table
    rows = pd.read_csv(StringIO(table.partition("\n\n")[2]), sep="|", skipinitialspace=True, skiprows=[1])
    rows = rows.rename(columns=str.strip).set_index("probe")
    closest = [0.01 if name.startswith("integrated") else 1e-5 for name in rows.index]  # other nodes
    assert len(rows) == 5 and (rows["difference from by hand"] <= closest).all()
    assert (rows["difference from literal"] <= closest).all() and (rows["ours / unavoidable"] > 0).all()
    docs = tmp_path / "speed.md"
    docs.write_text("before\n<!-- measured -->\nold\n<!-- end -->\nafter\n")
    write_docs(docs, table)
    assert docs.read_text(encoding="utf-8") == f"before\n<!-- measured -->\n{table}<!-- end -->\nafter\n"


def test_both_rivals_take_the_same_left_ends(makers):
    workload = makers["integrated gradients"]
    by_hand, literal = workload.by_hand([2]), workload.literal([2])
    assert largest_difference(by_hand, literal) <= 1e-5
    by_hand["igrads"] *= 1.01
    assert largest_difference(by_hand, literal) == pytest.approx(0.01, rel=0.1)


def test_the_answer_is_probable_enough_for_quadrature_to_matter(makers):
    result = makers["integrated gradients"].ours()
    assert result["f_difference"].min() > 0.5  # two tokens of probability 1/2
    assert (result["error"] <= 0.01).all()


def counted(run):
    """FLOPs of run() as torch counts them, attention by plain products over all pairs of places."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_the_floor_of_a_forward_pass_is_what_torch_counts_but_for_pairs_that_do_not_see_each_other(llm):
    T, config = 30, llm.config
    work = floor.relative_contribution(config, [T])
    work.unembed(T, at_once=T)
    unseen = config.num_hidden_layers * 4 * work.d_heads * (T * T - floor.seen(0, T))
    with torch.no_grad():
        flops = counted(lambda: llm._module(input_ids=torch.zeros(1, T, dtype=torch.long), use_cache=False))
    assert work.flops() + unseen == flops


def test_the_floor_of_a_backward_pass_is_what_torch_counts(llm):
    T, config = 30, llm.config
    x = torch.randn(1, T, config.hidden_size, requires_grad=True)
    llm._module.requires_grad_(False)  # as `load_model` does
    work = floor.Work(config)
    for _ in range(config.num_hidden_layers):
        work.block(T, T * T, at_once=T, length=T, backward=True)
    work.unembed(T, at_once=T, backward=True)
    assert work.flops() == counted(lambda: llm._module(inputs_embeds=x, use_cache=False).logits.sum().backward())


def rows_through(work, width):
    """Rows of all products whose result has `width` columns."""
    return sum(rows for (_, _, n), rows in work.rows.items() if n == width)


def test_skipping_costs_later_blocks_only(llm):
    """By hand: 4 blocks, 40 tokens, t = 20, so tokens 1 to 19 and then 20 to 39 change in 3 + 2 + 1 + 0 blocks."""
    work = floor.layer_effects(llm.config, [40], [[20]])
    assert rows_through(work, llm.config.intermediate_size) == 2 * (4 * 40 + 6 * 39)  # gate and up
    assert rows_through(work, llm.config.vocab_size) == (1 + 3) * 20


def test_erasing_costs_the_suffix_from_its_block_on(llm):
    """By hand: 9 tokens, places 7 and 8 are the answer, so tokens 0..7 count: suffixes of 8, 7, …, 1 tokens."""
    work = floor.residual_erasure(llm.config, [7, 8], [])
    assert rows_through(work, llm.config.intermediate_size) == 2 * (4 * 8 + (1 + 2 + 3 + 4) * 36)
    assert rows_through(work, llm.config.vocab_size) == 4 * (2 * 7 + 1) + 2 + 1  # both positions see tokens 0..6


def test_layers_are_spread_over_all():
    assert spread(12, 4) == [1, 4, 7, 10] and spread(13, 1) == [6]


def test_the_costs_on_a_server_in_the_docs_are_what_the_command_computes():
    docs = (Path(ndif_cost.__file__).parents[1] / "docs" / "ndif.md").read_text(encoding="utf-8")
    assert "\n".join(ndif_cost.lines()) in docs
