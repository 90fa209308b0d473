"""Angular distances against short-transformers', by its own distance on the residual streams of plain PyTorch."""

import pytest
import torch

import depth_lib as dl
from tests.families import ARCHETYPES, build, of_families
from tests.oracles.streams import block_states, in_float64
from tests.third_party.conftest import TEXT, folder_of

short_transformers = pytest.importorskip("short_transformers.dist", reason="make test-oracles installs it")


@pytest.mark.parametrize("name", of_families(ARCHETYPES))
def test_angular_distances_are_those_of_short_transformers(name, tmp_path):
    llm = dl.load_model(str(folder_of(name, tmp_path)), dtype="float32")
    ids = torch.tensor(llm.tokenizer(TEXT)["input_ids"])
    h = block_states(in_float64(build(name)), ids)[0][:, None]
    ours = dl.block_removal(llm, [TEXT], sizes=[1, 2, 3])["angular_distance"]
    for row, n in enumerate((1, 2, 3)):
        theirs = [short_transformers.angular_distance_last_token(h[s], h[s + n]) for s in range(len(h) - n)]
        assert ours[row, : len(theirs)].tolist() == pytest.approx(theirs, abs=1e-6)
