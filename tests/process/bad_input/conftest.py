"""The command in this process, a good checkpoint to be spoilt, and a cache that is still empty."""

import shutil

import pytest

from tests.process.bad_input.refusal import USER, assert_nothing_half_written, the_line


@pytest.fixture
def fails(here, tmp_path):
    """Run the command in this process; give back the one line of its failure, without the prefix."""

    def run(*arguments, status=USER):
        ended = here(*arguments)
        line = the_line(ended.err)
        assert (ended.status, ended.out) == (status, ""), line
        assert_nothing_half_written(tmp_path)
        return line

    return run


@pytest.fixture
def model(references, tmp_path):
    """A good checkpoint, to be spoilt. Its own cache, so that nothing is packed yet."""
    folder = tmp_path / "model"
    shutil.copytree(references("openllama").folder, folder)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
