"""Who takes part: a peer that cannot be installed is told of, not left out silently."""

from pathlib import Path

import pytest

from tools.peers.contestants import Answer, Contestant, Work, prepare
from tools.peers.install import NotInstalled
from tools.peers.models import Models
from tpiedge.errors import UserError


@pytest.fixture
def work(tmp_path) -> Work:
    return Work(tmp_path, Models(tmp_path / "models", None), threads=2, tokens=12)


def ready(name: str):
    return lambda _work: Contestant(name, lambda _limit: [name], lambda _out: Answer(1.0, {}), ())


def broken(_work: Work) -> Contestant:
    raise NotInstalled("pip install b: no such version")


def test_the_others_run_without_one_that_is_missing(work, capsys):
    makers = {"own": ready("own"), "a": ready("a"), "b": broken, "c": ready("c")}
    found, missing = prepare(("own", "b", "a"), work, makers)
    assert [contestant.name for contestant in found] == ["own", "a"]
    assert missing == {"b": "pip install b: no such version"}
    assert "b is left out" in capsys.readouterr().err


def test_nothing_is_compared_with_nothing(work):
    with pytest.raises(NotInstalled):
        prepare(("own", "a"), work, {"own": broken, "a": ready("a")})


def test_slow_ones_decode_fewer_tokens(work):
    assert work.few_tokens == 3
    assert Work(work.folder, work.models, 2, 1).few_tokens == 2


def test_a_given_checkpoint_is_used_and_must_be_one(tmp_path):
    with pytest.raises(UserError, match="it has no config"):
        Models(tmp_path / "work", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    for name, size in (("model-1.safetensors", 10), ("model-2.safetensors", 5)):
        Path(tmp_path / name).write_bytes(bytes(size))
    models = Models(tmp_path / "work", tmp_path)
    assert models.nbytes() == 15
    assert models.checkpoint() == tmp_path
