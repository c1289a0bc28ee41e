import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub_server import Hub, Repo, running_hub
from tests.process.command import Ended, run_command
from tpiedge.units import format_bytes

NAME = "org/babbler"
PROMPT = ("--nodes", 2, "--raw", "--prompt", "ba zu", "--max-tokens", 4)


@pytest.fixture(scope="module")
def expected(text_model: Path) -> list[int]:
    ended = run_command("run", "--model", text_model, *PROMPT, "--threads", 1, "--json")
    assert ended.status == 0, ended.err
    return json.loads(ended.out)["token_ids"]


@pytest.fixture
def hub(text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
        hub.repos[NAME] = Repo.of(text_model)
        yield hub


def test_model_is_pulled_run_listed_and_removed(
    expected: list[int],
    hub: Hub,
    here: Callable[..., Ended],
    generate: Callable[..., dict],
    text_model: Path,
    tmp_path: Path,
) -> None:
    assert "tpiedge pull org/babbler" in here("run", "--model", NAME, "--raw", "--prompt", "ba").err
    pulled = here("pull", NAME, "--json")
    assert pulled.status == 0, pulled.err
    assert json.loads(pulled.out)["fetched_bytes"] == sum(map(len, hub.repos[NAME].files.values()))
    assert "pulling org/babbler: " in pulled.err
    before = len(hub.requests)
    assert generate("--model", NAME, *PROMPT)["token_ids"] == expected
    assert here("pack", text_model).status == 0
    assert len(hub.requests) == before
    listed = json.loads(here("ls", "--json", "--all").out)
    assert [model["model"] for model in listed["models"]] == [NAME]
    assert NAME in [pack["model"] for pack in listed["packs"]]
    assert "llama2-70b" in [alias["name"] for alias in listed["aliases"]]
    shown = json.loads(here("show", NAME, "--json").out)
    assert (shown["num_layers"], shown["hidden_size"], len(shown["packs"])) == (3, 64, 1)
    (pack,) = [pack for pack in listed["packs"] if pack["model"] == NAME]
    (line,) = [line for line in here("show", pack["name"]).out.splitlines() if line.startswith("pack")]
    assert line.split()[1:3] == [f"{pack['precision']},", format_bytes(pack["nbytes"]).split()[0]]
    assert f"pack        {pack['name']}, {pack['precision']}, " in here("show", NAME).out
    assert here("rm", NAME, stdin="n\n").status == 0
    assert json.loads(here("ls", "--json").out)["models"]
    assert here("rm", NAME, "--packs-only", "--yes").status == 0
    assert [pack["model"] for pack in json.loads(here("ls", "--json").out)["packs"]] == ["babbler"]
    assert here("rm", NAME, "--yes").status == 0
    assert "not on this computer" in here("run", "--model", NAME, "--raw", "--prompt", "ba").err
    assert not list((tmp_path / "cache" / "hub").glob("models--*"))
    assert here("rm", text_model, "--yes").status == 0
    assert (text_model / "model.safetensors").is_file()


ALLOWED = {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
}
# Every Python process that is started with this on its path notes what it opens. (Templates are rendered in one that
# takes no path from outside.)
_AUDIT = """
import os, sys
folder = os.environ["TPIEDGE_AUDITED"]
log = os.open(os.environ["TPIEDGE_AUDIT_LOG"], os.O_WRONLY | os.O_APPEND)
def _note(event, args, folder=folder, log=log):
    if event == "open" and str(args[0]).startswith(folder):
        os.write(log, (os.path.relpath(str(args[0]), folder) + "\\n").encode())
sys.addaudithook(_note)
"""


@pytest.fixture
def audited(text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_AUDIT)
    (tmp_path / "opened").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("TPIEDGE_AUDITED", str(folder))
    monkeypatch.setenv("TPIEDGE_AUDIT_LOG", str(tmp_path / "opened"))
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.fault("F2", "never fetched, opened or run")
def test_code_and_pickles_of_a_model_are_never_touched(
    audited: Path,
    tpiedge: Callable[..., Ended],
    expected: list[int],
    tmp_path: Path,
) -> None:
    owned = f"open({str(tmp_path / 'owned')!r}, 'w')"
    code = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", None],
    }
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((audited / name).read_text())
        (audited / name).write_text(json.dumps(values | {"auto_map": code, "trust_remote_code": True}))
    for name in ("evil", "torch", "numpy", "json", "tpiedge", "tokenizers", "modeling_llama"):
        (audited / f"{name}.py").write_text(owned)
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt", "model.pkl"):
        (audited / name).write_bytes(b"cbuiltins\nexec\n(S" + repr(owned).encode() + b"\ntR.")
    ran = tpiedge("run", "--model", audited, *PROMPT, "--threads", 1, "--json")
    assert json.loads(ran.out)["token_ids"] == expected, ran.err
    assert tpiedge("show", audited).status == 0
    tpiedge("doctor")
    assert not (tmp_path / "owned").exists()
    opened = set((tmp_path / "opened").read_text().split())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= opened <= ALLOWED
