"""Pulls models from the hub and shows progress."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpiedge.local.catalogue import find_model
from tpiedge.model.source import HubCache, HubName, NotPulled, parse_hub_name
from tpiedge.progress import ByteProgress, say
from tpiedge.units import format_bytes

if TYPE_CHECKING:
    from tpiedge.model.hub import PullReport


def pull_shown(
    name: HubName, cache: Path | None, agree: Callable[[int], object] = lambda _: None
) -> "PullReport":
    """Pulls a model with progress on standard error. `agree` gets the bytes to fetch and may raise. Raises UserError,
    DiskFull, HubError."""
    # Imported late: it needs an HTTP client, unlike other verbs.
    from tpiedge.model.hub import pull

    progress, fetched = ByteProgress(f"pulling {name}"), 0

    def begin(nbytes: int) -> None:
        nonlocal progress
        agree(nbytes)
        progress = ByteProgress(f"pulling {name}")  # its time does not count the answer to a question

    try:
        report = pull(name, HubCache(cache), lambda done, total: progress(done, total), begin)
        fetched = report.fetched
    finally:
        progress.finish(fetched)
    for file in report.left_out:
        say(f"{file} was left out: it reads images, which tpiedge does not support")
    return report


def offer_pull(model_name: str, cache: Path | None) -> None:
    """Pulls a missing model if the user agrees. Raises UserError if the user refuses, or without a terminal."""
    try:
        find_model(model_name, cache)
        return
    except NotPulled as error:
        missing, name = error, parse_hub_name(model_name)
    if name is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise missing

    def agree(nbytes: int) -> None:
        question = f"{model_name} is not on this computer: pull it now ({format_bytes(nbytes)})?"
        if not click.confirm(question, default=True, err=True):
            raise missing

    pull_shown(name, cache, agree)
