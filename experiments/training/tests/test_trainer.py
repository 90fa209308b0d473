"""A killed training goes on and ends with the same weights; shared blocks share, and unroll to the same model."""

import random
import re
from dataclasses import replace

import pytest
import torch

from depth_lib import check_model, load_model
from experiments.training import trainer
from experiments.training.experiment import draw
from experiments.training.measure import exact_matches
from experiments.training.shared import BLOCKS, GROUP, new_toy, unrolled
from experiments.training.tasks import LARGEST, draw_nested, draw_sum, is_held_out
from experiments.training.toys import byte_tokenizer
from tests.probes.device_tags import PretendDevices, place

RECIPE = trainer.Recipe("small", seed=3, steps=6, peak_rate=1e-2, question_weight=0.0, rows=2, width=40)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    torch.set_num_threads(1)  # the same weights are those of the same number of threads
    monkeypatch.setattr(trainer, "EVERY", 2)
    monkeypatch.setattr("experiments.training.shared.BLOCKS", 4)


def trained(folder, recipe=RECIPE, shared=True):
    torch.manual_seed(recipe.seed)
    return trainer.train(recipe, new_toy(shared), byte_tokenizer(), draw, folder)


def weights(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(tmp_path):
    for name, recipe in {"a": RECIPE, "b": RECIPE, "c": replace(RECIPE, seed=4)}.items():
        trained(tmp_path / name, recipe)
    a, b, c = ((tmp_path / name / "loss.csv").read_text() for name in "abc")
    assert a == b != c and len(a.splitlines()) == 1 + RECIPE.steps


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [2, 3, 5])
def test_a_killed_training_goes_on_and_ends_with_the_same_weights(tmp_path, monkeypatch, killed_after):
    whole = weights(trained(tmp_path / "whole"))
    calls = iter(range(1, 100))

    def rows(*args, real=trainer.packed_rows):
        if next(calls) > killed_after:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as killing:
        killing.setattr(trainer, "packed_rows", rows)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "killed")
    resumed = weights(trained(tmp_path / "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (tmp_path / "whole/loss.csv").read_bytes() == (tmp_path / "killed/loss.csv").read_bytes()


def test_a_folder_of_another_recipe_is_refused(tmp_path):
    trained(tmp_path)
    with pytest.raises(ValueError, match="is of another recipe .*; remove it, or train into another folder"):
        trained(tmp_path, replace(RECIPE, peak_rate=1e-3))


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
        assert len(exact_matches(model, byte_tokenizer(), [("5 + 7 = ", "12")])) == 1


def test_shared_blocks_are_trained_as_one_and_unroll_to_an_ordinary_checkpoint(tmp_path):
    looped = trained(tmp_path / "run")
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
    layers = new_toy(shared=False).model.layers
    assert (
        len({id(layer) for layer in layers}) == len(layers) != len({id(layer) for layer in new_toy(True).model.layers})
    )
    assert BLOCKS % GROUP == 0


def test_nested_questions_have_their_number_of_steps_and_a_true_answer():
    rng = random.Random(0)
    for n in range(900):
        steps, held_out = n % 9 + 1, n % 2 == 0
        question, answer = draw_nested(rng, steps, held_out)
        expression = re.fullmatch(r"Q: What is (.+)\? A: ", question)[1]
        assert eval(expression) == int(answer) and abs(int(answer)) <= LARGEST
        assert sum(expression.count(op) for op in "+-*") == steps
        assert is_held_out(question) == held_out


def test_sums_have_their_number_of_terms():
    rng = random.Random(0)
    for terms in range(2, 10):
        question, answer = draw_sum(rng, terms, held_out=True)
        assert question.count("+") == terms - 1 and eval(question.removesuffix("= ")) == int(answer)
        assert is_held_out(question)
