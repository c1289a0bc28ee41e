import json
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from click.testing import CliRunner

from tests.fakes.service import PACK
from tests.http.conftest import SECRET, KnowingTemplate, answers
from tpiedge.cli.cache import cache
from tpiedge.cli.chat_client import chat
from tpiedge.cli.main import cli
from tpiedge.cli.master_parts import only_master
from tpiedge.cli.models import shards
from tpiedge.cli.nodes import nodes
from tpiedge.cli.use import _wait_until_served
from tpiedge.errors import PeerError, PeerLost, UserError
from tpiedge.host.private_file import replace_private
from tpiedge.local.served_models import ServedModel
from tpiedge.master.status import NodeStatus

NODES = (
    NodeStatus("w-0123", 0, "serving", (0, 2), (0, 5), 4, 8_000_000_000, 3e9, 1_500_000, 0.2, "fastest"),
    NodeStatus("w-4567", None, "spare\x1b[2J", (0, 0), (0, 0), 2, 0, 0.0, 0, 95.0, "too slow", "attic"),
)


@pytest.fixture
def command(tmp_path, service, serve):
    """Run a command against the running master, whose state folder it finds."""
    server = serve()
    replace_private(tmp_path / "master" / "admin.json", {"url": server.url, "secret": SECRET})

    def run(command, *arguments, stdin=""):
        result = CliRunner().invoke(command, [*arguments, "--state", str(tmp_path)], input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    with only_master(tmp_path / "master"):
        yield run


def test_chat_command_prints_one_answer_as_json(command, service):
    text = answers(service, "Hello there")
    record = json.loads(command(chat, "--prompt", "hi", "--json", "--max-tokens", "20", "--temperature", "0"))
    assert record["text"] == text
    assert record["finish_reason"] == "stop"
    assert record["model"] == "babbler"
    assert record["usage"]["completion_tokens"] > 0
    request = service.generations.get(timeout=20).request
    assert (request.max_tokens, request.sampling.temperature) == (20, 0.0)


def test_reasoning_is_shown_and_is_no_part_of_the_answer(command, service):
    service.template = KnowingTemplate()
    answers(service, "<think>Hm, well.</think>Hello there")
    assert command(chat, "hi") == "Hm, well.\n\nHello there\n"
    answers(service, "<think>Hm, well.</think>Hello there")
    assert json.loads(command(chat, "--prompt", "hi", "--json"))["text"] == "Hello there"


def test_chat_talks_to_the_model_that_the_user_names(command, service):
    service.others = [
        ServedModel("phi", 64, 0, digest="b" * 64, tokenizer=service.tokenizer, template=service.template)
    ]
    text = answers(service, "Hello there")
    record = json.loads(command(chat, "--prompt", "hi", "--json", "--model", "phi"))
    assert (record["model"], record["text"]) == ("phi", text)
    assert service.generations.get(timeout=20).request.pack == "b" * 64
    with pytest.raises(UserError, match=r"the model 'demo' is not served here; 'babbler' is"):
        command(chat, "--prompt", "hi", "--model", "demo")


def test_chat_changes_the_model_during_a_conversation(command, service):
    service.others = [
        ServedModel("phi", 64, 0, digest="b" * 64, tokenizer=service.tokenizer, template=service.template)
    ]
    answers(service, "Hello there")
    command(chat, stdin="hi\n/model phi\nand\n/model nothing\n/model\nmore\n")
    requests = [service.generations.get(timeout=20).request for _ in range(3)]
    assert [one.pack for one in requests] == [PACK, "b" * 64, "b" * 64]
    assert len(requests[2].prompt_ids) > len(requests[1].prompt_ids), "the conversation goes on"


def test_use_says_what_is_served_until_the_switch():
    picture = {"model": {"name": "demo"}, "ready": True, "reason": "phi is next", "next": "phi", "events": []}
    with pytest.raises(PeerError, match=r"phi is not served yet .*, but is next \(demo serves until then\)"):
        _wait_until_served(SimpleNamespace(get=lambda _path: picture), "phi", 0.0)


def test_a_conversation_keeps_its_turns(command, service):
    text = answers(service, "Hello there")
    out = command(chat, "--system", "be kind", stdin="hi\nand\n/clear\nnew\n/exit\nnever\n")
    assert out == f"{text}\n" * 3
    prompts = [
        service.tokenizer.decode(service.generations.get(timeout=20).request.prompt_ids) for _ in range(3)
    ]
    assert prompts == [
        "<system>be kind<user>hi",
        f"<system>be kind<user>hi<assistant>{text}<user>and",
        "<system>be kind<user>new",
    ]


def test_a_lost_worker_ends_the_command_with_its_cause(command, service):
    def script(generation):
        generation.say(*service.tokenizer.encode("one two", add_special=False))
        generation.fail(PeerLost(1, "step 3", "killed by signal 9"))

    service.script = script
    with pytest.raises(PeerError, match="killed by signal 9"):
        command(chat, "--prompt", "hi")


def test_too_long_message_does_not_end_the_conversation(command, service):
    text = answers(service, "Hello there")
    assert command(chat, stdin="hi\n" + "once " * 2000 + "\nhi\n") == f"{text}\n" * 2


def test_nodes_command_prints_workers_and_pending_ones(command, service):
    service._nodes = NODES
    out = command(nodes)
    assert out.splitlines()[2].split()[:5] == ["w-0123", "0", "serving", "0-1", "0-4"]
    assert "attic: too slow" in out
    assert "attic (192.0.2.7) waits to join" in out
    assert "\x1b" not in out


def test_nodes_command_prints_json(tmp_path, command, service):
    service._nodes = NODES
    record = json.loads(command(nodes, "--json"))
    assert [node["name"] for node in record["nodes"]] == ["w-0123", "w-4567"]
    assert record["pending"][0]["name"] == "attic"


def lost(name, host, seen_s):
    cause = f"silent for {host}"
    return NodeStatus(name, None, "lost", (0, 0), (0, 0), 2, 0, 0.0, 0, seen_s, cause, host)


def test_nodes_command_says_whether_prompts_are_kept(command, service, monkeypatch):
    status = service.status
    assert "on disk" not in command(nodes)
    monkeypatch.setattr(service, "status", lambda: replace(status(), keeps_context=True))
    assert "prompts are kept on disk: tpiedge cache ls" in command(nodes)
    why = "prompts are not kept on disk: \x1b[2J"
    monkeypatch.setattr(service, "status", lambda: replace(status(), not_kept=why, not_parked="nor others"))
    lines = command(nodes).splitlines()
    assert any(line.startswith("prompts are not kept") and "\x1b" not in line for line in lines)
    assert "nor others" in lines


def test_cache_command_lists_and_clears_all_machines(tmp_path, command, service):
    service._nodes = (NODES[1],)
    out = command(cache, "ls")
    rows = [line.split() for line in out.splitlines()]
    assert ["master", "2", "8.2", "kB", "1.0", "GB", "0", "0", "B", "none"] in rows
    assert ["attic", "1", "4.1", "kB", "none", "1", "512", "B", "4.1", "kB"] in rows
    record = json.loads(command(cache, "ls", "--json"))
    assert [one["kept"] for one in record["machines"]] == [
        {"pages": 2, "nbytes": 8192},
        {"pages": 1, "nbytes": 4096},
    ]
    assert not service.cleared
    out = command(cache, "clear", "--all-nodes")
    assert service.cleared
    assert out == "master: 2 pages deleted (8.2 kB)\nattic: 2 pages deleted (4.6 kB)\n"
    service._nodes = (replace(NODES[1], state="lost"),)
    with pytest.raises(PeerError, match=r"attic: it is away; type 'tpiedge cache clear' there"):
        command(cache, "clear", "--all-nodes")


def test_cache_command_needs_no_master_for_this_computer(tmp_path):
    for name, count in (("master", 1), ("worker", 2)):
        folder = tmp_path / name / "pages" / "kept"
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number:032x}-1").write_bytes(bytes(4096))
    state = ("--state", str(tmp_path))

    def run(command, *words):
        result = CliRunner().invoke(command, [*words, *state])
        assert result.exit_code == 0, result.output
        return result.stdout

    rows = [line.split() for line in run(cache, "ls").splitlines()]
    assert ["worker", "2", "8.2", "kB", "-", "0", "0", "B", "-"] in rows
    assert json.loads(run(shards, "ls", "--json", "--cache", str(tmp_path)))["page_bytes"] == 8192
    assert run(cache, "clear") == "master: 1 page deleted (4.1 kB)\nworker: 2 pages deleted (8.2 kB)\n"
    assert [one["kept"]["pages"] for one in json.loads(run(cache, "ls", "--json"))["machines"]] == [0, 0]
    result = CliRunner().invoke(cache, ["clear", "--all-nodes", *state])
    assert "no master runs on this computer" in str(result.exception)


def test_nodes_command_approves_and_revokes_workers(tmp_path, command, service):
    service._nodes = NODES

    def run(*arguments):
        return CliRunner().invoke(cli, ["nodes", "--state", str(tmp_path), *arguments])

    assert "attic" in run("approve", "K7Q2").output
    assert service.approved == ["K7Q2"]
    assert run("revoke", "w-0123").output == "w-0123 is revoked\n"
    assert run("revoke", "attic").output == "attic (w-4567) is revoked\n"
    assert service.revoked == ["w-0123", "w-4567"]
    assert isinstance(run("revoke", "nobody").exception, UserError)
    assert isinstance(run("approve", "wrong").exception, UserError)
    service.no_room = "no space left for members.json: free some"
    full = run("approve", "K7Q2").exception
    assert (str(full), full.exit_code) == (service.no_room, 4)
    assert service.approved == ["K7Q2"]


def test_draining_waits_until_the_worker_has_no_part(command, service):
    service._nodes = NODES
    assert command(nodes, "drain", "attic") == "attic (w-4567) is drained and may be switched off\n"
    assert service._nodes[1].state == "drained"
    assert json.loads(command(nodes, "drain", "w-4567", "--json")) == {
        "name": "w-4567",
        "host": "attic",
        "state": "drained",
    }
    assert command(nodes, "drain", "attic", "--undo") == "attic (w-4567) is back in use\n"
    assert json.loads(command(nodes, "drain", "attic", "--undo", "--json")) == {"name": "w-4567"}


def test_impossible_draining_is_refused(command, service):
    service._nodes, service.needed = NODES, "without attic the others cannot serve"
    with pytest.raises(UserError, match="without attic the others cannot serve"):
        command(nodes, "drain", "attic")
    assert service._nodes == NODES
    with pytest.raises(UserError, match="there is no node 'nobody'"):
        command(nodes, "drain", "nobody")


def test_nodes_clear_ends_a_workers_back_off(command, service):
    service._nodes = tuple(
        replace(node, state="left out") if node.name == "w-4567" else node for node in NODES
    )
    assert command(nodes, "clear", "attic") == "attic (w-4567) is no longer left out\n"
    assert [node.state for node in service.status().nodes if node.name == "w-4567"] == ["spare"]
    assert json.loads(command(nodes, "clear", "attic", "--json")) == {"name": "w-4567"}
    with pytest.raises(UserError, match="nobody"):
        command(nodes, "clear", "nobody")


def test_nodes_link_prints_a_link_to_this_computers_page(command, tmp_path):
    url, _, code = command(nodes, "link").strip().partition("/#admin=")
    answer = httpx.post(f"{url}/admin/key", headers={"Authorization": f"Bearer {code}"})
    assert answer.json() == {"key": SECRET}
    assert json.loads(command(nodes, "link", "--json"))["link"].startswith(f"{url}/#admin=")
    replace_private(tmp_path / "master" / "admin.json", {"url": "http://192.168.1.10:8080", "secret": SECRET})
    with pytest.raises(UserError, match=r"not on loopback: open http://192\.168\.1\.10:8080"):
        command(nodes, "link")


def test_second_master_is_told_how_to_switch_the_model(tmp_path):
    folder = tmp_path / "master"
    with (
        only_master(folder),
        pytest.raises(UserError, match="'tpiedge use MODEL' switches"),
        only_master(folder),
    ):
        pass


@pytest.mark.parametrize("command", [nodes, chat])
def test_command_without_a_master_says_how_to_start_one(tmp_path, command):
    replace_private(tmp_path / "master" / "admin.json", {"url": "http://127.0.0.1:1", "secret": "s"})
    arguments = ["--state", str(tmp_path)] + (["--prompt", "x"] if command is chat else [])
    with only_master(tmp_path / "master"), pytest.raises(UserError, match="tpiedge master"):
        raise CliRunner().invoke(command, arguments).exception
    with pytest.raises(UserError, match="no master runs on this computer"):
        raise CliRunner().invoke(nodes, ["--state", str(tmp_path)]).exception
    (tmp_path / "master" / "admin.json").unlink()
    with pytest.raises(UserError, match="tpiedge master"):
        raise CliRunner().invoke(nodes, ["--state", str(tmp_path)]).exception
