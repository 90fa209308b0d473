"""Every public function's docstring shows a call, which gives what it says, and what a call costs."""

import doctest
import re

import matplotlib.pyplot as plt
import pytest

import depth_lib as dl
from tests.marks import others_slow

FUNCTIONS = [name for name in dl.__all__ if name.islower()]  # not the classes
AS_SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


SECONDS = {"prune", "linear_maps", "depth_by_difficulty", "stretch", "compare", "block_accuracy", "paper"}
SECONDS |= {"effective_depths", "local_effects", "block_removal", "removable", "layer_effects", "future_erasure"}


@pytest.mark.parametrize("name", others_slow(FUNCTIONS, {*FUNCTIONS} - SECONDS))
def test_the_example_of_a_public_function_gives_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(dl, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={"dl": dl})
    assert test.examples, f"the docstring of {name} has no call with its output, after >>>"
    assert re.search("Cost( of [^.:]*)?: ", function.__doc__), f"the docstring of {name} has no line Cost:"
    said = []
    doctest.DocTestRunner(optionflags=AS_SHOWN).run(test, out=said.append)
    plt.close("all")
    assert not said, "".join(said)
