"""Lenses on NDIF's own code, in its sandbox: applied bit for bit, and fitted by forward passes alone."""

import pytest
import torch

import depth_lib as dl
from depth_lib.lenses import files
from depth_lib.lenses.files import LensError
from depth_lib.models.families import describe
from tests.calls import SUM, TEXTS
from tests.remote.conditions import differences
from tests.remote.loopback import MISSING

if MISSING:
    pytest.skip(f"the remote tests run on NDIF's own code, without {MISSING}: make ndif", allow_module_level=True)


def some_lens(llm):
    arch, draw = describe(llm), torch.Generator().manual_seed(0)
    L, d = arch.n_layers, arch.width
    A = torch.eye(d) + 0.1 * torch.randn(L, d, d, generator=draw)
    return {"A": A, "b": torch.randn(L, d, generator=draw)}


@pytest.mark.slow
def test_a_lens_travels_and_gives_the_local_numbers(llm, loopback):
    here, lens = loopback.here("loopback/llama", "bfloat16"), some_lens(llm)
    with loopback.faults(sandbox=True, dtype="bfloat16"):
        result = dl.logit_lens(llm, TEXTS, lens=lens, remote=loopback.host)
    answers = dl.answer_lens(llm, *SUM, lens=lens, remote=loopback.host)
    assert not differences(result, dl.logit_lens(here, TEXTS, lens=lens))
    assert not differences(answers, dl.answer_lens(here, *SUM, lens=lens))


def test_a_lens_that_is_too_large_to_send_is_refused_in_one_line(llm, loopback, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_REQUEST", 1000)
    with pytest.raises(LensError, match="^the lens has 0 MiB, which travel with each job, but a server accepts 0") as e:
        dl.logit_lens(llm, TEXTS, lens=some_lens(llm), remote=loopback.host)
    assert "\n" not in str(e.value)


@pytest.mark.slow
def test_a_jacobian_lens_is_refused_in_the_sandbox_and_names_the_published_ones(llm, loopback):
    with loopback.faults(sandbox=True, dtype="float32"):
        with pytest.raises(LensError, match="^the server's sandbox returns no gradients; read a published lens"):
            dl.fit_lens(llm, TEXTS[:1], remote=loopback.host)
