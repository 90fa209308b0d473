"""Gradients of several blocks share passes, and are those of each block alone."""

import pytest
import torch

from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe
from depth_lib.probes import integrated_gradients as gradients
from depth_lib.session import run
from tests.families import L, build
from tests.probes.comparing import TOLERANCE, loaded

QUESTION = ("5 + 7 + 5 = ", "17")


@pytest.fixture
def passes(monkeypatch):
    """The number of points of each path in every pass."""
    seen, one_pass = [], gradients._one_pass

    def noted(llm, arch, pieces, *others):
        seen.append([len(points) for _, _, points in pieces])
        return one_pass(llm, arch, pieces, *others)

    monkeypatch.setattr(gradients, "_one_pass", noted)
    return seen


@pytest.mark.parametrize(
    "family, at",
    [("llama", "block"), ("llama", "attention"), ("llama", "mlp"), ("gpt_neox", "attention"), ("bloom", "mlp")],
)
def test_blocks_share_passes_and_each_alone_gives_the_same(family, at, passes, tmp_path):
    llm = loaded(build(family), tmp_path)
    (ids, places, _), arch = answer_span(llm, *QUESTION), describe(llm)

    def found(layers):
        work = (arch, ids, places, layers, at, None, 1e-3, None)
        return run(gradients.integrated_gradients, llm, *work, remote=False)

    together = found(list(range(L)))
    n_together, joined = len(passes), max(map(len, passes))
    alone = [found([l]) for l in range(L)]
    assert (joined > 1 and n_together < len(passes) - n_together) if arch.can_add_rows else joined == 1
    for key, values in together.items():
        one_by_one = torch.cat([result[key] for result in alone])
        scale = together["igrads"].abs().max() if key in ("igrads", "completeness", "f_difference") else 1
        assert (values - one_by_one).abs().max() <= TOLERANCE * scale, key
