"""One live line about a remote job: in a notebook, in a terminal, and nowhere when nobody watches."""

import html
import sys
import time

from tqdm import tqdm


class StatusLine:
    """A line that is rewritten in place; `remains` lines stay. Quiet when the output is piped, except for `remains`."""

    def __init__(self, label):
        self._label, self._start, self._shown, self._handle = label, time.monotonic(), "", None
        self._notebook = _in_notebook()
        self._terminal = not self._notebook and sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Put `text` in place of what the line said."""
        self._put(f"{self._label}: {_plain(text)} ({tqdm.format_interval(time.monotonic() - self._start)})")

    def end(self, text: str = "") -> None:
        """The line's last words; without any it goes."""
        if text or self._shown:
            self._put(
                f"{self._label}: {_plain(text)} ({tqdm.format_interval(time.monotonic() - self._start)})"
                if text
                else ""
            )
        if self._terminal and text:
            sys.stderr.write("\n")
        self._shown, self._handle = "", None

    def remains(self, text: str) -> None:
        """A line of its own that is there whoever watches."""
        self.end()
        print(f"{self._label}: {text}", file=sys.stderr, flush=True)

    def _put(self, line):
        if line == self._shown and line:
            return
        self._shown = line
        if self._terminal:
            sys.stderr.write("\r\033[K" + line)
            sys.stderr.flush()
        elif self._notebook:
            self._display(line)

    def _display(self, line):
        from IPython.display import display

        content = {"text/plain": line, "text/html": f"<pre>{html.escape(line)}</pre>"}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def _in_notebook():
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def _plain(text):
    """The first line of a server's text, without characters that would steer a terminal."""
    line = (str(text).splitlines() or [""])[0]
    return "".join(c if c.isprintable() else " " for c in line)[:200]
