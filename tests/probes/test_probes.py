"""Every probe against its oracle: on eight families in all modes and parts, on the others once.

Contributions, lens and effects of every kind of model are in tests/models/test_kinds.py.
"""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.models.families import describe
from depth_lib.probes.future_erasure import measure_future_erasure
from depth_lib.probes.integrated_gradients import measure_integrated_gradients
from depth_lib.probes.layer_effects import measure_layer_effects
from depth_lib.probes.local_effects import measure_local_effects
from depth_lib.probes.residual_erasure import measure_residual_erasure
from depth_lib.session import run
from tests import oracles as oracle
from tests.families import ARCHETYPES, FAMILIES, of_families
from tests.marks import slow
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, TOLERANCE, close, compare_in_batch, ids_of, load

TEXTS = ["8", "abcdefghijkl", SIXTY[:44], ""]  # of 2, 13, 45 and 1 tokens
PARTS = ("layer", "attention", "mlp")
GRADIENTS, INCREMENTS = ("gradients", [0, 3], 16), ("increments", [0, 3], 2)  # of which blocks, in how many steps
# built as another family: only the attention or the unembedding differ, of which these probes read nothing
ALIKE = "llama_tied llama_multi_query mistral qwen2 qwen2_tied qwen3 mixtral_dense phi3".split()
PAIRS = {2: ("", "8"), 15: (QUESTION, ANSWER)}  # question and answer, by their number of tokens with <bos>


@pytest.fixture(scope="module", params=of_families(ARCHETYPES))
def pair(request):
    return load(request.param)


def compare(ours, truth):
    """Whether each of the oracle's matrices is the probe's: float32 rounds a distance of distributions, which is a
    difference of numbers near 1, and the logits of two batches, whose difference a loss is even where nothing changes:
    by 4 units of a logit of 8 at most."""
    scales = {"layer": 1e-9, "local": 1e-9, "loss": 0.2}
    for key, matrix in truth.items():
        close(ours[key], matrix, TOLERANCE, scales.get(key.rpartition("_")[2], 0.1))


def test_contributions_and_lens_equal_the_oracle(pair):
    llm, model = pair
    ids = ids_of(llm, TEXTS)
    assert [len(x) for x in ids] == [2, 13, 45, 1]
    ours = dl.relative_contribution(llm, TEXTS)
    for key, curve in oracle.relative_contribution(model, ids).items():
        close(ours[key], curve, scale=0.1 if key == "first_change" else 1e-9)  # 1 less numbers near 1
    ours = dl.logit_lens(llm, TEXTS)
    for key, curve in oracle.logit_lens(model, ids).items():
        close(ours[key], curve)


@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", ["future", "all", "remove"])
def test_layer_effects_equal_the_oracle(pair, mode, part):
    llm, model = pair
    lengths = TEXTS[: 4 if mode == "remove" else 3] if part == "layer" else TEXTS[1:2]  # the fourth has one token
    for texts in [TEXTS[:3]] if mode == "future" else [[text] for text in lengths]:
        ours = dl.layer_effects(llm, texts, mode=mode, part=part)
        compare(ours, oracle.layer_effects(model, ids_of(llm, texts), mode, part=part))


@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("mode", ["future", "all"])
def test_local_effects_equal_the_oracle(pair, mode):
    llm, model = pair
    texts = ["8", TEXTS[1], SIXTY[:21]]  # of the last two positions
    truth = oracle.local_effects(model, ids_of(llm, texts), mode)
    (local,) = truth.values()
    assert local.triu(1).count_nonzero() == local.numel() // 2 - len(local) // 2
    compare(dl.local_effects(llm, texts, mode=mode), truth)


@pytest.mark.parametrize("n_tokens", PAIRS)
def test_erasures_equal_the_oracle(pair, n_tokens):
    llm, model = pair
    baseline = [TEXTS[1], SIXTY[:30]]
    x, span = oracle.answer_span(llm.tokenizer, *PAIRS[n_tokens])
    assert len(x) == n_tokens
    truth = oracle.residual_erasure(model, torch.tensor(x), span, ids_of(llm, baseline))["erasure_effect"]
    close(dl.residual_erasure(llm, *PAIRS[n_tokens], baseline)["erasure_effect"], truth)
    truth = oracle.future_erasure(model, torch.tensor(x), ids_of(llm, baseline))
    compare(dl.future_erasure(llm, *PAIRS[n_tokens], baseline), truth)


@pytest.mark.parametrize("method, layers, steps", [GRADIENTS, INCREMENTS])
@pytest.mark.parametrize("at", ["block", "attention", "mlp"])
def test_attributions_equal_the_oracle_at_the_same_points_with_and_without_batches_that_grow(
    pair, at, method, layers, steps
):
    llm, model = pair
    fast, plain = describe(llm), describe(llm).but(can_add_rows=False)
    for n_tokens in (2, 15) if (at, method) == ("block", "gradients") else (15,):
        x, span = oracle.answer_span(llm.tokenizer, *PAIRS[n_tokens])
        if method == "gradients":
            truth = oracle.integrated_gradients(model, x, span, "riemann", steps, layers, at)
        else:
            truth = oracle.increments(model, x, span, steps, layers, at)
        for arch in (fast, plain) if plain != fast else (plain,):
            work = (arch, x, list(range(*span)), layers, at, steps, None, None)
            ours = run(measure_integrated_gradients, llm, *work, method=method)
            close(ours["igrads"], truth["igrads"][layers])
            # a difference of nearly equal numbers, F among them
            close(ours["completeness"], truth["completeness"][layers], 5e-5, scale=truth["igrads"].abs().max())


def test_the_plain_path_equals_the_fast_one(pair, monkeypatch):
    """No batch that grows, an unmodified row in each: what a family runs on where it must."""
    llm, _ = pair
    fast, plain = describe(llm), describe(llm).but(can_add_rows=False)
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    (text,) = tokenize(llm, [SIXTY[:29]])
    future, whole = [(text, [8, 16, 24])], [(text, [len(text)])]
    calls = [
        (measure_layer_effects, future, "future", "layer", None),
        (measure_layer_effects, whole, "all", "layer", None),
        (measure_layer_effects, future, "future", "attention", None),
        (measure_layer_effects, whole, "remove", "mlp", None),
        (measure_local_effects, future, "future", None),
        (measure_future_erasure, x, list(range(fast.n_layers)), [text], None),
        (measure_residual_erasure, x, list(range(*span)), list(range(fast.n_layers)), [text], None),
    ]
    for probe, *args in calls:
        one = run(probe, llm, fast, *args)
        for arch, in_batch in [(plain, False)] * (plain != fast) + [(fast, True)]:  # the last as in half precision
            with monkeypatch.context() as patch:
                compare_in_batch(patch, in_batch)
                other = run(probe, llm, arch, *args)
            for key in one:
                of_outputs = key.endswith(("out", "kl", "loss", "top1", "future_erasure", "past_erasure"))
                close(one[key], other[key], scale=0.1 if of_outputs else 1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in {*ARCHETYPES, *ALIKE}])
def test_every_other_family_equals_the_oracle(name):
    pair = load(name)
    test_layer_effects_equal_the_oracle(pair, "all", "attention")
    test_layer_effects_equal_the_oracle(pair, "remove", "mlp")
    test_local_effects_equal_the_oracle(pair, "all")
    test_erasures_equal_the_oracle(pair, 15)
    attributions = test_attributions_equal_the_oracle_at_the_same_points_with_and_without_batches_that_grow
    for at, *how in (("block", *GRADIENTS), ("attention", *GRADIENTS), ("mlp", *INCREMENTS)):
        attributions(pair, at, *how)


@pytest.mark.parametrize("name", ["llama", slow("gemma2")])
def test_integrated_gradients_have_converged(name):
    llm, model = load(name)
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    truth = oracle.integrated_gradients(model, x, span, nodes=64)
    ours = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature=1e-6)
    close(ours["igrads"], truth["igrads"], tolerance=5e-5)  # panels stop at float32's rounding of F
    rough = dl.integrated_gradients(llm, QUESTION, ANSWER)
    largest = truth["igrads"].abs().amax(1)
    assert ((rough["igrads"] - truth["igrads"]).abs().amax(1) <= (rough["error"] + 1e-5) * largest).all()
    assert (rough["error"] <= 0.01).all() and (rough["n_nodes"] <= ours["n_nodes"]).all()


def test_riemann_gradients_equal_256_left_end_steps():
    llm, model = load("llama")
    ours = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature="riemann")
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    close(ours["igrads"][1], oracle.integrated_gradients(model, x, span, "riemann", 256, [1])["igrads"][1])
