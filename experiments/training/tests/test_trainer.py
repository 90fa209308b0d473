"""Training is seeded and reads what it should; shared blocks share, and unroll to the same model."""

from dataclasses import replace

import pytest
import torch

from depth_lib import check_model, load_model
from depth_lib.data.examples import Example
from experiments.training import trainer
from experiments.training.experiment import draw
from experiments.training.measure import exact_matches
from experiments.training.shared import GROUP, new_toy, unrolled
from experiments.training.toys import byte_tokenizer
from tests.probes.device_tags import PretendDevices, place

RECIPE = trainer.Recipe("small", seed=3, steps=6, peak_rate=1e-2, question_weight=0.0, rows=2, width=40)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("experiments.training.shared.BLOCKS", 4)


def trained(recipe=RECIPE):
    torch.manual_seed(recipe.seed)
    return trainer.train(recipe, new_toy(shared=True), byte_tokenizer(), draw)


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others():
    a, b, c = (trained(recipe).state_dict() for recipe in (RECIPE, RECIPE, replace(RECIPE, seed=4)))
    assert all(torch.equal(a[name], b[name]) for name in a) and not torch.equal(*(x["lm_head.weight"] for x in (a, c)))


def test_training_on_answers_does_not_see_questions():
    ids, answering = trainer.packed_rows(lambda: ("5 + 7 = ", "12"), byte_tokenizer(), 1, 24)
    text = "".join(chr(i) if i < 128 else "|" for i in ids[0])
    assert text == "5 + 7 = 12|5 + 7 = 12|5 "
    assert "".join("a" if a else "q" for a in answering[0]) == "qqqqqqqaaaa" * 2 + "qq"
    torch.manual_seed(0)
    model = new_toy(shared=False).eval()
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
    of_answers, of_all = losses[answering[0, 1:]].mean(), losses.mean()
    torch.testing.assert_close(trainer.weighted_loss(model, ids, answering, 0.0), of_answers, check_stride=False)
    torch.testing.assert_close(trainer.weighted_loss(model, ids, answering, 1.0), of_all)
    assert of_answers != of_all


def test_a_model_on_a_gpu_is_fed_there():
    model = new_toy(shared=False).eval()
    ids, answering = trainer.packed_rows(lambda: ("5 + 7 = ", "12"), byte_tokenizer(), 1, 24)
    with PretendDevices():
        for weight in [*model.parameters(), *model.buffers()]:
            place(weight, "cuda:0")
        loss = trainer.weighted_loss(model, ids, answering, 0.0)
        assert str(loss.device) == "cuda:0"
        assert len(exact_matches(model, byte_tokenizer(), [Example(2, "5 + 7 = ", "12")])) == 1


@pytest.mark.slow
def test_shared_blocks_are_trained_as_one_and_unroll_to_an_ordinary_checkpoint(tmp_path):
    looped = trained()
    apart = unrolled(looped)
    states = [apart.model.layers[l].state_dict() for l in range(4)]
    for l in range(GROUP, 4):
        assert all(torch.equal(value, states[l % GROUP][name]) for name, value in states[l].items())
    assert len({p.data_ptr() for p in apart.parameters()}) == len(list(apart.parameters()))
    ids = torch.randint(0, 257, (2, 30))
    with torch.no_grad():
        looped_logits = looped(ids, use_cache=False).logits  # shared blocks would fight for one place in a cache
        torch.testing.assert_close(apart(ids).logits, looped_logits, atol=1e-6, rtol=1e-6)
    byte_tokenizer().save_pretrained(tmp_path / "saved")
    apart.half().save_pretrained(tmp_path / "saved")
    assert check_model(load_model(tmp_path / "saved", dtype="float32"))


def test_ordinary_blocks_do_not_share():
    assert [len({*map(id, new_toy(shared).model.layers)}) for shared in (False, True)] == [4, GROUP]
