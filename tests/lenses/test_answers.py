"""What a lens says of an answer, and when it says what the model does: against plain PyTorch, and the logit lens."""

import pytest
import torch

import depth_lib as dl
from tests.families import D, L, build, of_families
from tests.oracles import answer_span
from tests.oracles import lenses as oracle
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, close, load, loaded

IDENTITY = {"A": torch.eye(D).repeat(L, 1, 1), "b": torch.zeros(L, D)}


@pytest.mark.parametrize("name", of_families(["llama", "gemma2", "opt_projected"]))
def test_ranks_and_probabilities_of_an_answer_are_those_of_the_translated_residuals(name):
    llm, model = load(name)
    draw = torch.Generator().manual_seed(0)
    A, b = torch.eye(D) + 0.1 * torch.randn(L, D, D, generator=draw), torch.randn(L, D, generator=draw)
    ids, places = answer_span(llm.tokenizer, QUESTION, ANSWER)
    ids, places = torch.tensor(ids), list(range(*places))
    for lens in (None, {"A": A, "b": b}):
        by = [(lens or IDENTITY)[key].double() for key in ("A", "b")]
        z = oracle.translated(model, ids, *by)[:, [place - 1 for place in places]]
        true = ids[places].expand(L + 1, -1)[..., None]
        ours = dl.answer_lens(llm, QUESTION, ANSWER, lens=lens)
        close(ours["answer_log_probs"], z.log_softmax(-1).gather(2, true)[..., 0], 1e-4)
        assert torch.equal(ours["answer_ranks"], 1 + (z > z.gather(2, true)).sum(-1).float())
        log_p = z.log_softmax(-1)
        close(ours["answer_kl"], (log_p.exp() * (log_p - log_p[-1])).sum(-1), 1e-4)
        assert torch.equal(ours["answer_top"].long(), z.topk(5).indices)
    assert ours["tokens"] == list(ANSWER) and ours["top_tokens"][-1][0][0] == llm.tokenizer.decode(z[-1, 0].argmax())


@pytest.mark.parametrize("name, dtype", [("llama", torch.float32), ("gpt2", torch.bfloat16)])
def test_one_and_nothing_added_is_the_logit_lens_bit_for_bit(name, dtype):
    llm = loaded(build(name, dtype))
    for probe, work in ((dl.logit_lens, [[SIXTY, "8 apples"]]), (dl.answer_lens, [QUESTION, ANSWER])):
        plain, translated = (probe(llm, *work, lens=lens) for lens in (None, IDENTITY))
        assert all(torch.equal(plain[key], translated[key]) for key in plain if torch.is_tensor(plain[key]))
