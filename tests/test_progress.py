"""What is told of a probe's progress, and to whom."""

from depth_lib.progress import heard_by, steps


def test_who_listens_is_told_before_each_prompt_and_at_the_end():
    heard = []
    with heard_by(lambda *words: heard.append(words)):
        assert list(steps(["a", "b"], "logit lens", "layer")) == ["a", "b"]
    assert heard == [("logit lens", done, 2, "layer", done / 2) for done in (0, 1, 2)]
    assert list(steps(["a"], "logit lens")) == ["a"] and len(heard) == 3, "only inside the block"


def test_the_share_that_is_done_is_that_of_the_costs():
    heard = []
    with heard_by(lambda *words: heard.append(words)):
        list(steps([[0], [1], [2]], "gradients", unit="part", costs=[3, 2, 1]))
    assert [share for *_, share in heard] == [0, 3 / 6, 5 / 6, 1] and heard[0] == ("gradients", 0, 3, "part", 0)


def test_what_is_piped_has_no_bar(capfd):
    assert list(steps(range(3), "logit lens")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
