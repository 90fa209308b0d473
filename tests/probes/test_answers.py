"""Lens and contributions on the tokens of stored answers, or on each prompt's last one; where tokens settle."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import text_ids
from tests.families import build, make_identity
from tests.models.kinds import tiny
from tests.oracles import answer_span, curves
from tests.oracles.answers import direct_effects
from tests.probes.comparing import close
from tests.tiny_tokenizers import char_tokenizer

PROMPTS, ANSWERS = ["5 + 7 = ", "The quick brown fox", "a"], ["12", " jumps over the dog.", "bc"]


def cases(llm):
    """The calls' settings, and of each prompt what the model reads and the first place that is measured."""
    whole = [text_ids(llm.tokenizer, prompt)[0] for prompt in PROMPTS]
    both = [text_ids(llm.tokenizer, prompt + answer)[0] for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    before = [len(ids) - 1 for ids in whole]
    yield {"answers": ANSWERS}, [ids[:-1] for ids in both], before
    yield {"answers": [ids[len(p) :] for ids, p in zip(both, whole, strict=True)]}, [ids[:-1] for ids in both], before
    yield {"at": "last"}, whole, before


def test_the_measured_tokens_are_those_of_the_oracle(pair):
    llm, model = pair
    for how, ids, firsts in cases(llm):
        found = dl.logit_lens(llm, PROMPTS, **how, per_token=True)
        for key, curve in curves.logit_lens(model, ids, firsts).items():
            close(found[key], curve)
        assert "loss" not in found
        for p, (x, first) in enumerate(zip(ids, firsts, strict=True)):
            assert found["settling"][p].tolist() == curves.settling(model, x, first)
            assert found["jsd"][p].shape == (len(x) - first, 4) and found["jsd"][p].dtype == torch.float16
        if "answers" in how:
            assert ["".join(tokens) for tokens in found["tokens"]] == ANSWERS
        found = dl.relative_contribution(llm, PROMPTS, **how)
        for key, curve in curves.relative_contribution(model, ids, firsts).items():
            close(found[key], curve, scale=0.1 if key == "first_change" else 1e-9)


def test_stored_greedy_responses_give_what_generating_them_gives(toy, tmp_path):
    prompts = ["5 + 7 + 5 = ", "1 + 2 = ", "the cat sat"]
    generated = dl.logit_lens(toy, prompts, generate=6, per_token=True)
    stored = dl.logit_lens(toy, prompts, answers=generated["generated"], per_token=True)
    assert stored.keys() == generated.keys() - {"generated"}
    for key, value in stored.items():
        ours, theirs = ([x] if torch.is_tensor(x) else x for x in (value, generated[key]))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other) if torch.is_tensor(one) else one == other, key
    saved = dl.load_artifact(stored.save(tmp_path / "logitlens_3exps.pt"))
    assert all(torch.equal(*layers) for layers in zip(saved["settling"], stored["settling"], strict=True))


@pytest.mark.parametrize("k", [1, 3])
def test_tokens_settle_behind_the_last_block_that_does_something(k):
    llm = dl.load_model(make_identity(build("llama"), range(k, 4)), char_tokenizer())
    found = dl.logit_lens(llm, PROMPTS, answers=ANSWERS)
    assert max(int(layers.max()) for layers in found["settling"]) <= k
    assert (dl.deep_thinking_ratio(found, rho=(k + 1) / 4).ratio == 0).all()


def test_a_last_block_that_alone_decides_makes_every_token_deep_thinking():
    model = make_identity(build("llama"), range(3))
    with torch.no_grad():
        for weight in (model.model.layers[3].mlp.down_proj.weight, model.model.layers[3].self_attn.o_proj.weight):
            weight.mul_(1000)
        model.lm_head.weight.mul_(30)
    frame = dl.deep_thinking_ratio(dl.logit_lens(dl.load_model(model, char_tokenizer()), PROMPTS, answers=ANSWERS))
    assert frame.ratio.tolist() == [1, 1, 1] and frame.tokens.tolist() == [2, 20, 2] and frame.attrs["mean"] == 1


def test_a_chat_model_that_is_given_plain_prompts_is_warned_of(toy, monkeypatch):
    monkeypatch.setattr(toy.tokenizer, "chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    with pytest.warns(
        UserWarning, match="these prompts do not use the model's chat template; to apply it, use dl.chat"
    ):
        dl.logit_lens(toy, ["5 + 7 = "], generate=1)


def test_direct_effects_are_those_of_the_oracle(pair):
    llm, model = pair
    for question, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids, span = answer_span(llm.tokenizer, question, answer)
        found = dl.direct_effects(llm, question, answer)
        for key, truth in direct_effects(model, ids, span).items():
            close(found[key], truth, 3e-5, scale=0.1)  # a difference of logits
        assert "".join(found["tokens"]) == answer


@torch.no_grad()
def test_direct_effects_are_of_what_is_left_where_blocks_multiply_the_residual():
    model, added, final = tiny("gemma4_text").float().eval(), [], []
    for block in model.model.layers:
        block.layer_scalar.fill_(0.5)
        block.post_attention_layernorm.register_forward_hook(lambda _, args, output: added.append(output[0]))
    model.model.norm.register_forward_pre_hook(lambda _, args: final.append(args[0][0]))
    llm = dl.load_model(model, char_tokenizer())
    found = dl.direct_effects(llm, PROMPTS[0], ANSWERS[0])
    ids, (first, end) = answer_span(llm.tokenizer, PROMPTS[0], ANSWERS[0])
    added.clear(), final.clear()
    model(torch.tensor([ids]), use_cache=False)
    h, n_layers, predicting = final[0], len(added), slice(first - 1, end - 1)

    def log_p(h):
        logits = model.lm_head(model.model.norm(h[predicting]))
        cap = model.config.final_logit_softcapping
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[first:end])[:, None])[:, 0]

    for l, a in enumerate([*added]):
        close(found["direct_att"][l], log_p(h) - log_p(h - a * 0.5 ** (n_layers - l)), 3e-5, scale=0.1)


def test_a_block_that_adds_nothing_has_no_direct_effect():
    llm = dl.load_model(make_identity(build("llama"), [1, 2]), char_tokenizer())
    found = dl.direct_effects(llm, "5 + 7 = ", "12")
    for key in ("direct_att", "direct_mlp"):
        assert not found[key][1:3].any() and found[key][[0, 3]].all()


def test_answers_that_repeat_their_prompts_are_warned_of_and_padded_ones_refused(toy):
    prompts, pad = ["5 + 7 = ", "9 + 8 = "], toy.tokenizer.pad_token_id
    ids = [text_ids(toy.tokenizer, prompt)[0] for prompt in prompts]
    for answers in ([f"{prompt}12" for prompt in prompts], [[*before, 49] for before in ids]):
        with pytest.warns(UserWarning, match="every answer begins with its own prompt"):
            dl.logit_lens(toy, prompts, answers=answers)
    assert pad == toy.tokenizer.eos_token_id, "which ends an answer once"
    assert dl.logit_lens(toy, prompts, answers=[[49, pad], [pad]])["n_tokens"].tolist() == [2, 1]
    for padded in ([pad, 49], [49, pad, pad]):
        with pytest.raises(ValueError, match=f"the answer to prompt 1 is padded with token {pad}; pass its own"):
            dl.logit_lens(toy, prompts, answers=[[49], padded])
