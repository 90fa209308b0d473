"""What is told of a probe's progress, and to whom."""

from depth_lib.progress import steps, told_to


def test_who_listens_is_told_before_each_prompt_and_at_the_end():
    heard = []
    with told_to(lambda *words: heard.append(words)):
        assert list(steps(["a", "b"], "logit lens")) == ["a", "b"]
    assert heard == [("logit lens", 0, 2), ("logit lens", 1, 2), ("logit lens", 2, 2)]
    assert list(steps(["a"], "logit lens")) == ["a"] and len(heard) == 3, "only inside the block"


def test_what_is_piped_has_no_bar(capfd):
    assert list(steps(range(3), "logit lens")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
