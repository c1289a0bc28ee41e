"""The folders of models, and of the state of masters and workers."""

from pathlib import Path

from platformdirs import user_cache_path, user_state_path

LOCKER = "locker"
"""The folder in a machine's state in which a node leaves keys and values for the next one."""


def cache_folder(cache: Path | None) -> Path:
    """--cache, or the user's cache folder."""
    return cache or user_cache_path("tpiedge")


def packs_folder(cache: Path | None) -> Path:
    """The folder of packs in --cache, or in the user's cache folder."""
    return cache_folder(cache) / "packs"


def shards_folder(cache: Path | None) -> Path:
    """The folder of the parts of models that a worker keeps."""
    return cache_folder(cache) / "shards"


def master_state(state: Path | None) -> Path:
    """The folder with key, members and tokens of this machine's master."""
    return _state(state) / "master"


def worker_state(state: Path | None) -> Path:
    """The folder with this machine's key as a worker, and the masters that it knows."""
    return _state(state) / "worker"


def _state(state: Path | None) -> Path:
    return state or user_state_path("tpiedge")
