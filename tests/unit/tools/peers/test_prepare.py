"""Who takes part: a peer that cannot be installed is told of, not left out silently."""

import argparse
import json
from pathlib import Path

import pytest

from tools import bench_shapes
from tools.peers import models
from tools.peers.contestants import MAKERS, Answer, Contestant, Work, prepare
from tools.peers.install import NotInstalled
from tools.peers.limits import Limit
from tools.peers.models import SHAPES, Models, RandomModels
from tools.peers.offload import models_of
from tpiedge.cli.run import run
from tpiedge.errors import UserError

NODE = {"peak_rss_bytes": 1, "disk_read_bytes": 1}
OWN = {"master_peak_rss_bytes": 1}


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
    given = Models(tmp_path / "work", tmp_path)
    assert given.nbytes() == 15
    assert given.checkpoint() == tmp_path
    assert given.name == tmp_path.name


@pytest.mark.parametrize("precision", ["q4", "q8"])
def test_who_reads_no_quantised_weights_is_left_out_before_it_is_installed(precision, tmp_path, capsys):
    work = Work(tmp_path, RandomModels(tmp_path / "models", SHAPES["1.1b"], precision), threads=2, tokens=12)
    names = ["accelerate", "accelerate device_map", "airllm"]
    makers = {"own": ready("own")} | {name: MAKERS[name] for name in names}
    found, missing = prepare(("own", *names), work, makers)
    assert [contestant.name for contestant in found] == ["own"]
    assert missing == dict.fromkeys(names, f"it reads no {precision} weights")
    assert list(tmp_path.iterdir()) == []


def test_quantised_weights_are_made_once_in_each_form(tmp_path, monkeypatch):
    made = []

    def write(preset: str, precision: str, out: Path) -> None:
        made.append((preset, precision))
        out.write_bytes(bytes(7))

    def pack(command: list[str]) -> None:
        made.append(command[1:])
        out = Path(command[-1])
        out.mkdir()
        (out / "manifest.json").touch()

    monkeypatch.setattr(models, "write_random_gguf", write)
    monkeypatch.setattr(models, "checked", pack)
    quantised = RandomModels(tmp_path / "models", "llama2-7b", "q4")
    for _ in range(2):
        assert quantised.weights() == [quantised.gguf()] == [tmp_path / "models" / "llama2-7b-q4.gguf"]
        assert quantised.nbytes() == 7
        assert quantised.pack() == tmp_path / "models" / "llama2-7b-q4.pack"
    options = ["--random", "llama2-7b", "--precision", "q4", "--out", str(quantised.pack())]
    assert made == [("llama2-7b", "q4"), ["pack", *options]]


@pytest.mark.parametrize(("shape", "precision"), [(None, "q4"), ("7b", "bf16")])
def test_a_checkpoint_is_compared_as_it_is(tmp_path, shape, precision):
    (tmp_path / "config.json").write_text("{}")
    arguments = argparse.Namespace(work=tmp_path, checkpoint=tmp_path, shape=shape, precision=precision)
    with pytest.raises(UserError, match="leave it out for random weights of another"):
        models_of(arguments)
    arguments.checkpoint = None
    assert models_of(arguments).name == f"{SHAPES[shape or '1.1b']}-{precision}"


def test_tpiedge_takes_the_limit_that_it_is_given(work, monkeypatch):
    """A size without a unit would be refused."""
    monkeypatch.setattr(Models, "pack", lambda _models: Path("/pack"))
    limit = Limit(700_000_000, 60.0)
    _, verb, *flags = MAKERS["tpiedge"](work).command(limit)
    assert (verb, run.make_context("run", flags).params["memory"]) == ("run", limit.nbytes)


def test_a_shape_runs_with_the_memory_that_it_is_given(monkeypatch, tmp_path):
    given = []

    def answer(*words):
        given.append(words)
        return json.dumps(dict.fromkeys(("s_per_token", "ttft_s"), 1.0) | {"nodes": [NODE], **OWN})

    monkeypatch.setattr(bench_shapes, "_tpiedge", answer)
    (tmp_path / "tinyllama-q4").mkdir()
    wanted = {"packs": tmp_path, "precision": "q4", "nodes": 1, "memory": 700_000_000, "tokens": 1}
    bench_shapes.measure("tinyllama", argparse.Namespace(**wanted))
    (verb, *flags), *more = given
    assert not more
    assert (verb, run.make_context("run", flags).params["memory"]) == ("run", 700_000_000)
