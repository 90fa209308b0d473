"""What holds for every public function."""

import importlib
import inspect
import pkgutil

import pytest

import depth_lib as dl
from depth_lib.files import Held
from depth_lib.public import with_checked_kinds

FUNCTIONS = [getattr(dl, name) for name in dl.__all__ if name.islower()]  # not the classes
PLAIN = {
    "budget",
    "generate",
    "at_most",
    "seed",
    "part",
    "title",
    "kind",
    "mode",
    "remote",
    "result",
    "control",
    "meta",
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_an_argument_of_a_plain_kind_is_refused_by_its_name(function):
    for name in PLAIN & {*inspect.signature(function).parameters}:
        with pytest.raises(dl.ParamsError, match=rf"^{function.__name__}: {name} must be .+, got set$"):
            function(**{name: {5}})


def test_every_error_of_the_package_is_one_of_four_which_three_names_catch():
    for module in pkgutil.walk_packages(dl.__path__, "depth_lib."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kinds, found = [dl.ModelError, dl.ParamsError, dl.ArtifactError, dl.RemoteError], [Exception]
    for kind in found:
        found += {*kind.__subclasses__()} - {*found}
    own = {kind for kind in found if kind.__module__.startswith("depth_lib.")} - {Held}  # a sweep catches it
    assert len(own) > 10 and all(issubclass(kind, tuple(kinds)) for kind in own), own
    assert all(issubclass(kind, (ValueError, dl.ArtifactError, dl.RemoteError)) for kind in own)


def test_every_kind_is_told_from_the_others_and_none_of_another_annotation():
    @with_checked_kinds
    def called(n: int = 0, share: float = 0, flag: bool = False, text: str | None = None, of: list[str] | None = None):
        return n, share, flag, text, of

    assert called(3, 2, True, of=5) == (3, 2, True, None, 5)
    assert called(share=0.5, text="a") == (0, 0.5, False, "a", None)
    for wrong in ({"n": 1.0}, {"n": True}, {"n": None}, {"share": "1"}, {"share": False}, {"flag": 1}, {"text": 5}):
        with pytest.raises(dl.ParamsError, match=f"called: {[*wrong][0]} must be .+, got "):
            called(**wrong)
    with pytest.raises(dl.ParamsError, match=r"called: n must be an integer, got 'three' \(str\)$"):
        called("three")
    with pytest.raises(TypeError, match="unexpected keyword"):
        called(m=5)
