"""Models that are in memory: of a training loop, or with adapters."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import depth_lib as dl
from depth_lib.embedded import toy_path

PROMPTS = ["2 + 3 = 5, and 4 + 4 = 8"]


class Adapted(nn.Module):
    """A linear module with a low-rank update beside it, as PEFT has it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Wrapper(nn.Module):
    """Holds a model as PEFT does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def get_base_model(self):
        return self.model


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(toy_path("toy-4l"), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(toy_path("toy-4l"))


def test_a_model_between_training_steps_is_measured_as_it_is_and_trained_on(model, tokenizer):
    (saved,) = {tuple(dl.logit_lens(dl.load_model("toy-4l"), PROMPTS)["res_kl_divs"].tolist())}
    assert dl.logit_lens(dl.load_model(model, tokenizer), PROMPTS)["res_kl_divs"].tolist() == pytest.approx(saved)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ids = tokenizer(PROMPTS, return_tensors="pt")["input_ids"]
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    llm = dl.load_model(model, tokenizer)
    dl.integrated_gradients(llm, "2 + 3 = ", "5")
    assert not model.training and all(map(torch.equal, gradients, [weight.grad for weight in model.parameters()]))
    optimizer.step()
    assert dl.logit_lens(llm, PROMPTS)["res_kl_divs"].tolist() != pytest.approx(saved, rel=1e-3)


def test_a_model_with_adapters_is_read_with_them(model, tokenizer):
    plain = dl.relative_contribution(dl.load_model(model, tokenizer), PROMPTS)
    torch.manual_seed(0)
    attention = model.model.layers[1].self_attn
    attention.o_proj = Adapted(attention.o_proj)
    adapted = dl.relative_contribution(dl.load_model(Wrapper(model), tokenizer), PROMPTS)
    changed = (plain["rc_att"] - adapted["rc_att"]).abs() > 1e-3
    assert not changed[0] and changed[1] and adapted["rc_att"].isfinite().all()


def test_a_model_in_memory_needs_its_tokenizer_and_runs_here(model, tokenizer):
    for given in ((model,), (model, tokenizer, True)):
        with pytest.raises(dl.ModelError, match="needs its tokenizer and runs here"):
            dl.load_model(*given)
