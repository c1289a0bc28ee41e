"""What the two chats have in common: the keyboard."""

import sys
from collections.abc import Callable

import click

__all__ = ["converse"]

_HELP = "Type a message and Enter. /clear forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer."


def converse(turn: Callable[[str], None], clear: Callable[[], None]) -> None:
    """Call `turn` with every message from standard input, until its end or /exit."""
    if sys.stdin.isatty():
        click.echo(_HELP, err=True)
    while (line := _read_line()) is not None and line.strip() != "/exit":
        if line.strip() == "/clear":
            clear()
        elif line.strip():
            turn(line)


def _read_line() -> str | None:
    """One line of the user; None at the end of input or on Ctrl-C at the prompt."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
