"""Standard output, where answers appear as they come."""

import os
import sys

import click

from tpiedge.cli.answer_text import WordWrap
from tpiedge.sanitise import sanitised

_COLUMNS = 80  # of a terminal that does not know


class Screen:
    """Shows one answer, which begins at the start of a line: on a terminal its words are wrapped."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """What comes next begins at the start of a line: something else has been written."""
        self._wrap = _wrap() if sys.stdout.isatty() else None

    def show(self, text: str) -> None:
        """The next piece of the answer, without what could command a terminal."""
        clean = sanitised(text, "\n\t")
        click.echo(self._wrap.push(clean) if self._wrap else clean, nl=False)


def _wrap() -> WordWrap:
    from prompt_toolkit.utils import get_cwidth  # takes a tenth of a second, for which a pipe need not wait

    return WordWrap(os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS, get_cwidth)
