"""A bar for who watches."""

from depth_lib.progress import steps, ticked


def test_what_is_piped_has_no_bar_and_all_its_items(capfd):
    assert list(steps(range(3), "logit lens")) == [0, 1, 2]
    with ticked("gradients") as tick:
        tick(1, 2)
    assert capfd.readouterr().err == ""


def test_on_a_terminal_a_bar_moves(capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert list(steps(["a", "b"], "logit lens")) == ["a", "b"]
    assert "logit lens:   0%" in capfd.readouterr().err
    assert list(steps(["a"], "logit lens")) == ["a"] and capfd.readouterr().err == "", "a single one has none"
