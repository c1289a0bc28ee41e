"""Where models are kept, and what a master and a worker must not forget."""

from pathlib import Path

import click
from platformdirs import user_cache_path, user_state_path

from tpiedge.cli.types import Location

__all__ = [
    "cache_folder",
    "cache_option",
    "master_state",
    "packs_folder",
    "state_option",
    "worker_state",
]


def cache_folder(cache: Path | None) -> Path:
    """--cache, or the user's cache folder."""
    return cache or user_cache_path("tpiedge")


def packs_folder(cache: Path | None) -> Path:
    """The folder of packs in --cache, or in the user's cache folder."""
    return cache_folder(cache) / "packs"


def master_state(state: Path | None) -> Path:
    """Key, members and tokens of this machine's master."""
    return _state(state) / "master"


def worker_state(state: Path | None) -> Path:
    """Key of this machine as a worker, and the masters that it knows."""
    return _state(state) / "worker"


def _state(state: Path | None) -> Path:
    return state or user_state_path("tpiedge")


cache_option = click.option(
    "--cache",
    type=Location(file_okay=False),
    envvar="TPIEDGE_CACHE",
    help="Folder for packs.  [default: the user's cache folder]",
)

state_option = click.option(
    "--state",
    type=Location(file_okay=False),
    envvar="TPIEDGE_STATE",
    help="Folder for keys, members and tokens.  [default: the user's state folder]",
)
