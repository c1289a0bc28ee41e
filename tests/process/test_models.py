import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from tests.hub_server import Hub, Repo, running_hub
from tests.process.command import COMMAND, Ended, run_command
from tests.process.test_import_gguf import write_text_gguf_of
from tpiedge.model.source import DEMO, resolve_model
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
    aliases = {alias["name"]: alias for alias in listed["aliases"]}
    assert "llama2-70b" in aliases
    assert aliases["llama2-70b"]["expert_bytes"] == 0
    mixture = aliases["qwen3-30b-a3b"]
    assert 10 * mixture["token_bytes"] > mixture["expert_bytes"] > 8 * mixture["token_bytes"]
    assert mixture["expert_bytes"] < mixture["nbytes"] < mixture["memory_bytes"]
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


GGUF = "org/boat-GGUF"


@pytest.fixture
def boat(hub: Hub, tmp_path: Path) -> Path:
    """The demo as a split GGUF file, with a projector beside it on the hub; returns the first part."""
    folder = tmp_path / "boat"
    folder.mkdir()
    first = write_text_gguf_of(resolve_model(DEMO), folder / "boat-Q8_0.gguf", "Q8_0", tensors_per_part=40)
    assert len(list(folder.iterdir())) > 1
    hub.repos[GGUF] = Repo.of(folder)
    hub.repos[GGUF].files["mmproj-boat-f16.gguf"] = b"x"
    return first


def test_gguf_of_the_hub_is_pulled_run_and_removed(
    hub: Hub, boat: Path, here: Callable[..., Ended], generate: Callable[..., dict]
) -> None:
    prompt = ("--raw", "--prompt", "The small boat", "--max-tokens", 4)
    pulled = here("pull", f"hf.co/{GGUF}:q8_0", "--json")
    assert pulled.status == 0, pulled.err
    assert json.loads(pulled.out)["model"] == f"{GGUF}:Q8_0"
    assert "mmproj-boat-f16.gguf was left out: it reads images" in pulled.err
    before = len(hub.requests)
    assert f"; did you mean {GGUF}:Q8_0?" in here("run", f"{GGUF}:Q8", "--prompt", "x").err
    ran = generate(f"{GGUF}:Q8_0", *prompt)
    assert ran["model"] == f"{GGUF}:Q8_0"
    assert ran["token_ids"] == generate(boat, *prompt)["token_ids"]
    assert generate("boat-q8", *prompt)["token_ids"] == ran["token_ids"]
    assert len(hub.requests) == before
    listed = json.loads(here("ls", "--json").out)
    assert [(one["model"], one["quant"]) for one in listed["models"]] == [(f"{GGUF}:Q8_0", "Q8_0")]
    assert [one["source"] for one in listed["packs"] if one["name"] == "boat-q8"] == [f"{GGUF}:Q8_0"]
    shown = json.loads(here("show", f"{GGUF}:Q8_0", "--json").out)
    assert (shown["repo"], shown["quant"], len(shown["packs"])) == (GGUF, "Q8_0", 1)
    assert 0 < shown["layer_bytes_per_node"]["keep"]["2"] == shown["layer_bytes_per_node"]["q8"]["2"]
    assert here("pack", "demo").status == 0
    assert "nothing of 'org/none'" in here("rm", "demo", "org/none", "--yes").err
    assert here("rm", "demo", f"{GGUF}:Q8_0", "--yes").status == 0
    left = json.loads(here("ls", "--json").out)
    assert [one["source"] for one in left["packs"]] == [str(boat)]
    assert left["models"] == []


def test_aliases_are_listed_with_size_licence_and_gate_until_they_are_pulled(
    hub: Hub, boat: Path, here: Callable[..., Ended]
) -> None:
    def line(name: str) -> str:
        (found,) = [line for line in here("list", "--all").out.splitlines() if line.startswith(f"{name} ")]
        return found

    def cells(name: str) -> list[str]:
        return re.split(" {2,}", line(name))[1:]

    assert cells("llama3.2-1b") == ["Q8_0", "1.3 GB", "1.3 GB", "1.8 GB", "to pull, llama3.2"]
    assert cells("llama2-7b") == ["checkpoint", "13.5 GB", "13.2 GB", "15.7 GB", "to pull, llama2, gated"]
    experts = ["Q4_K_M", "17.2 GB", "1.8 GB", "17.8 GB, no disk", "to pull, apache-2.0"]
    assert cells("qwen3-30b-a3b") == experts
    assert cells("gpt-oss-20b")[:2] == ["checkpoint", "13.2 GB"]
    assert "4096 tokens of context" in here("ls", "--all").out
    assert "not on this computer: tpiedge pull llama3.2:1b (1.3 GB)" in here("show", "llama3.2:1b").out
    hub.repos["Qwen/Qwen3-0.6B-GGUF"] = hub.repos[GGUF]
    assert here("pull", "qwen3:0.6b").status == 0
    assert line("qwen3-0.6b").endswith("Qwen/Qwen3-0.6B-GGUF:Q8_0, the hub")
    shown = here("show", "qwen3:0.6b").out
    assert "qwen3:0.6b (Qwen/Qwen3-0.6B-GGUF:Q8_0)" in shown
    assert "apache-2.0" in shown
    assert "pull" not in shown


@pytest.mark.parametrize("verb", ["run", "master"])
def test_missing_model_is_offered_on_a_terminal(hub: Hub, boat: Path, tmp_path: Path, verb: str) -> None:
    where = () if verb == "run" else ("--state", str(tmp_path / "state"))
    child = pexpect.spawn(
        COMMAND, [verb, f"{GGUF}:Q8_0", *where], encoding="utf-8", timeout=60, dimensions=(24, 300)
    )
    child.expect(rf"{GGUF}:Q8_0 is not on this computer: pull it now \([\d.]+ MB\)\? \[Y/n\]: ")
    child.sendline("n")
    child.expect(f"tpiedge pull {GGUF}:Q8_0")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 2
    assert not any(path.startswith("/cdn/") for path, _ in hub.requests)


def test_accepted_offer_pulls_and_runs_the_model(boat: Path) -> None:
    words = ("--prompt", "The small boat", "--raw", "--max-tokens", "4", "--threads", "1")
    child = pexpect.spawn(COMMAND, ["run", f"{GGUF}:Q8_0", *words], encoding="utf-8", timeout=60)
    child.expect(r"\[Y/n\]: ")
    child.sendline("")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0, child.before
    assert "pulling org/boat-GGUF:Q8_0: " in child.before


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
