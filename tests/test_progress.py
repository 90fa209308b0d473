"""What is told of a probe's progress, and to whom."""

from depth_lib.progress import steps, told_to


def test_who_listens_is_told_before_each_prompt_and_at_the_end():
    heard = []
    with told_to(lambda *words: heard.append(words)):
        assert list(steps(["a", "b"], "logit lens")) == ["a", "b"]
    assert heard == [("logit lens", done, 2, "prompt", done / 2) for done in range(3)]
    assert list(steps(["a"], "logit lens")) == ["a"] and len(heard) == 3, "only inside the block"


def test_the_share_that_is_done_is_that_of_the_costs():
    heard = []
    with told_to(lambda *words: heard.append(words)):
        list(steps([[0], [1], [2]], "gradients", unit="part", costs=[3, 2, 1]))
    assert [share for *_, share in heard] == [0, 3 / 6, 5 / 6, 1] and heard[0] == ("gradients", 0, 3, "part", 0)


def test_what_is_piped_has_no_bar(capfd):
    assert list(steps(range(3), "logit lens")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
