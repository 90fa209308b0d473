"""The benchmark: its literal probes equal the package's, its floor counts what torch counts, its table is written."""

import gc
import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.benchmarks import floor, maps, table
from tests.benchmarks.__main__ import add_memory_of_part, chosen, settings
from tests.benchmarks.further import costs_of_parts, further_workloads, text_and_pair
from tests.benchmarks.measure import in_turns, peak_memory
from tests.benchmarks.run import compare, spread, with_less_memory
from tests.benchmarks.shapes import model_of
from tests.benchmarks.workloads import workloads


@pytest.fixture(scope="module", autouse=True)
def little_overhead():
    """On matrices this small much of the time is collecting the suite's garbage."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def llm():
    return model_of("tiny")


@pytest.fixture(scope="module")
def rows(llm):
    makers = workloads(llm, "tiny") | further_workloads(llm, "tiny")
    parts = {"residual erasure, 9 tokens": 3, "residual erasure, 14 tokens": 2, "integrated gradients, 9 tokens": 1}
    return [compare(llm, name, make(), "cpu", 1, 0, parts.get(name)) for name, make in makers.items()]


def test_every_literal_probe_equals_ours(rows):
    assert len(rows) == 8
    for row in rows:
        assert row["difference"] <= 1e-5, row["workload"]


def test_a_literal_probe_that_is_off_shows_in_the_difference(llm):
    workload = workloads(llm, "tiny")["relative contribution, 2 × 40"]()
    wrong = replace(workload, literal=lambda parts: {"rc_att": 1.01 * workload.literal()["rc_att"]})
    assert compare(llm, "wrong", wrong, "cpu", 1, 0)["difference"] == pytest.approx(0.01 / 1.01, rel=1e-3)


def test_the_answer_is_probable_enough_for_quadrature_to_matter(llm):
    result = workloads(llm, "tiny")["integrated gradients, 9 tokens"]().ours()
    assert result["f_difference"].min() > 0.5  # two tokens of probability 1/2
    assert (result["error"] <= 0.01).all()


def test_a_smaller_budget_gives_the_same_numbers(llm):
    for name in ("layer effects, future, 1 × 40", "residual erasure, 14 tokens", "integrated gradients, 9 tokens"):
        assert with_less_memory(name, workloads(llm, "tiny")[name](), "cpu", budget=100)["difference"] <= 1e-5


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
    work = floor.Work(config)
    for _ in range(config.num_hidden_layers):
        work.block(T, T * T, at_once=T, length=T, backward=True)
    work.unembed(T, at_once=T, backward=True)
    assert work.flops() == counted(lambda: llm._module(inputs_embeds=x, use_cache=False).logits.sum().backward())


def rows_through(work, width):
    """Rows of all products whose result has `width` columns."""
    return sum(rows for (_, _, n), rows in work.rows.items() if n == width)


def test_skipping_costs_later_blocks_only(llm):
    """By hand: 4 blocks, 40 tokens, all skipped at blocks 0, 1, 2, 3, so 3 + 2 + 1 + 0 blocks on 39 tokens."""
    work = floor.layer_effects(llm.config, [40], [None])
    assert rows_through(work, llm.config.intermediate_size) == 2 * (4 * 40 + 6 * 39)  # gate and up
    assert rows_through(work, llm.config.vocab_size) == 40 + 4 * 39


def test_erasing_costs_the_suffix_from_its_block_on(llm):
    """By hand: 9 tokens, places 7 and 8 are the answer, so tokens 0..7 count: suffixes of 8, 7, …, 1 tokens."""
    work = floor.residual_erasure(llm.config, [7, 8], [])
    assert rows_through(work, llm.config.intermediate_size) == 2 * (4 * 8 + (1 + 2 + 3 + 4) * 36)
    assert rows_through(work, llm.config.vocab_size) == 4 * (2 * 7 + 1) + 2 + 1  # both positions see tokens 0..6


def test_ways_take_turns_and_stop_when_patience_ends():
    order = []
    ways = {name: lambda name=name: order.append(name) for name in "ab"}
    times, results = in_turns(ways, "cpu", repeats=3, patience=60)
    assert order == list("ababab") and len(times["a"]) == len(results["b"]) == 3
    assert len(in_turns(ways, "cpu", repeats=3, patience=0)[0]["a"]) == 1


def test_parts_are_spread_over_all_layers():
    assert spread(12, 4) == [1, 4, 7, 10]
    assert spread(13, 1) == [6]


def test_peak_memory_sees_what_is_freed_again():
    peak, before = peak_memory(lambda: torch.ones(16 * 2**20).sum(), "cpu")
    assert 60e6 < peak - before < 90e6


def test_the_table_is_written_in_three_forms(rows, tmp_path):
    where = table.circumstances("tiny", "cpu", "float32", 1)
    page = table.write(tmp_path / "bench", "bench", rows, [], where)
    assert (tmp_path / "bench" / "bench.md").read_text(encoding="utf-8") == page
    assert len(json.loads((tmp_path / "bench" / "bench.json").read_text())["rows"]) == 8
    assert len((tmp_path / "bench" / "bench.csv").read_text().splitlines()) == 1 + 8
    for row in rows:
        assert row["workload"] in page
    assert "≈" in page and torch.__version__ in page


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("BENCH", "big")
    monkeypatch.setenv("PROBES", "logit_lens;erasure")
    asked = settings([])
    assert (asked.shape, asked.size, asked.dtype, asked.literal_parts) == ("big", "few", "float32", 4)
    names = ["logit lens, 2 × 200", "residual erasure, 20 tokens", "layer effects, all, 1 × 200"]
    assert chosen(names, asked.probes) == names[:2]


def test_what_parts_cost_stands_beside_what_they_extend(llm, tmp_path):
    checks = costs_of_parts(llm, *text_and_pair(llm, "tiny"), "cpu", 1)
    assert len(checks) == 6 and all(check["before"] > 0 and check["bound"] > 1 for check in checks)
    checks = [dict(checks[0], memory_part=3 * 2**20, memory_extended=2**21, memory=1.5), *checks[1:]]
    page = table.write(tmp_path, "bench", [], checks, table.circumstances("tiny", "cpu", "float32", 1))
    assert "| mlp skip beside a layer's, future |" in page and "3 / 2 = 1.50 (≤ 1.05: no)" in page


def test_a_part_peaks_where_what_it_extends_does():
    asked = settings(["--shape", "tiny", "--size", "tiny"])
    for part in ("attention", "mlp"):
        row = {"check": f"{part} skip beside a layer's, all"}
        add_memory_of_part(row, asked)
        assert row["memory_part"] - row["memory_extended"] < 2**20


def test_maps_are_measured_in_turns_with_what_cannot_be_avoided(capsys):
    took = maps.measure(3000, shape="tiny", blocks=(1, 2))
    assert all(took[part] > 0 for part in ("ours", "forward", "products")) and took["beside"] > -0.1
    assert capsys.readouterr().out.count("block ") == 4  # of text: one to fit of at most 2048 tokens, another, two more
