"""`tpiedge top`: the running cluster, looked at every second."""

import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Final

import click

from tpiedge.cli.cluster_words import (
    MACHINE_HEADER,
    OTHER_FORM,
    REQUEST_HEADER,
    PictureJson,
    event_line,
    link_tables,
    machine_row,
    notes,
    request_row,
    summary,
    timeline_lines,
)
from tpiedge.cli.path_options import state_option
from tpiedge.cli.reach import MasterClient, admin_of
from tpiedge.cli.table import print_table
from tpiedge.errors import PeerError, UserError

_LOOK_S: Final = 1.0
_PATH: Final = "/admin/cluster"
_QUIT: Final = b"q"
#: Of the last ones.
_EVENTS: Final = 10
#: Of round trips, in a table that 80 columns have room for.
_TRIPS: Final = 7


@click.command()
@click.option(
    "--once", is_flag=True, help="Print plain lines once; so it is where the output is no terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Print one object, for programs.")
@state_option
def top(once: bool, as_json: bool, state: Path | None) -> None:
    """Show what the machines of the running master do, anew every second.

    Memory, the parts of a step's time, links, requests and what happened last. Ends with q or Ctrl-C.
    """
    if as_json or once or not sys.stdout.isatty():
        with admin_of(state) as master:
            picture = _two_looks(master)
        if as_json:
            click.echo(json.dumps(picture))
            return
        with _well_formed():
            _print(picture)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(state)


def _two_looks(master: MasterClient) -> PictureJson:
    """What there is to see: rates, and nodes' counters, come with the second look."""
    master.get(_PATH)
    time.sleep(_LOOK_S)
    return master.get(_PATH)


def _print(picture: PictureJson) -> None:
    click.echo(summary(picture))
    print_table(MACHINE_HEADER, [machine_row(one) for one in picture["machines"]])
    for header, *rows in link_tables(picture, _TRIPS):
        print_table(header, rows)
    if picture["requests"]:
        print_table(REQUEST_HEADER, [request_row(one) for one in picture["requests"]])
    for line in [*timeline_lines(picture), *notes(picture)]:
        click.echo(line)
    for event in picture["events"][:_EVENTS]:
        click.echo(event_line(event, date.today()))


def _watch(state: Path | None) -> None:
    from rich.live import Live  # takes a tenth of a second, for which a pipe need not wait

    from tpiedge.cli.top_screen import screen_of

    picture, problem = _look(state), ""  # what is wrong from the start ends the command
    with _well_formed(), _single_keys() as quits, Live(screen=True, auto_refresh=False) as live:
        while True:
            width, height = live.console.size
            screen = screen_of(picture, date.today(), width, problem, height)
            live.update(screen, refresh=True)
            if quits(_LOOK_S):
                return
            try:
                picture, problem = _look(state), ""
            except (UserError, PeerError) as error:  # the next look may find the master again
                problem = str(error)


def _look(state: Path | None) -> PictureJson:
    """At the master that runs now: another one may have another address and secret."""
    with admin_of(state) as master:
        return master.get(_PATH)


@contextlib.contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(OTHER_FORM) from None


@contextlib.contextmanager
def _single_keys() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits for so many seconds, or until q is pressed, and returns whether it was."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _quits
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_key(wait_s: float) -> bool:
    time.sleep(wait_s)
    return False


def _quits(wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            if _QUIT in typed or not typed:
                return True
    return False
