"""Every verb with what cannot be meant: one line that says what, where and what to do, and a documented status."""

import os
import socket

import click
import pytest

from tests.process.bad_input.refusal import USER
from tests.process.serving.serving import free_ports
from tpiedge.cli.main import cli

FAILED, PEER = 1, 3
BIG = 10**24
NOWHERE = "no.such.host.invalid"
CLOSED = "127.0.0.1:1"
OF_PEERS = ("no master found within 5 s", "connection refused")


def leaves(command, words=()):
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield words, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, (*words, name))


cli.load()
LEAVES = dict(leaves(cli))


@pytest.fixture(autouse=True)
def state(tmp_path, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("TPIEDGE_STATE", str(folder))
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return folder


def filled(words):
    command = LEAVES[words]
    found = list(words)
    for param in command.params:
        if param.required:
            option = isinstance(param, click.Option)
            usual = (
                param.type.choices[0] if isinstance(param.type, click.Choice) else "demo" if option else "x"
            )
            found += [param.opts[0], usual] if option else [usual]
    return found


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_unknown_flags_and_extra_arguments_are_refused(fails, words):
    assert "No such option '--zebra'" in fails(*filled(words), "--zebra")
    said = "No such command 'one'" if isinstance(LEAVES[words], click.Group) else "unexpected extra argument"
    given = (
        ["master"] if words in (("service", "logs"), ("service", "uninstall")) else []
    )  # else "one" is its choice
    if words not in (("config", "show"), ("rm",), ("testbed", "exec")):  # which take any number of words
        assert said in fails(*filled(words), *given, "one", "two", "three")


# That all verbs have these types, and take settings, is held by tests/unit/cli/test_shared_flags.py.
@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--cache", "", "'--cache': it is empty: give a path"),
        ("--wait", "nan", "nan is not a number"),
        ("--threads", "0x10", "'0x10' is not a whole number"),
    ],
)
def test_flag_values_of_the_wrong_type_are_refused(fails, tmp_path, flag, value, expected):
    assert expected in fails("worker", flag, value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"garbage [[[", "is not valid TOML"),
        (b"[zebra]\n", "there is no table [zebra]"),
        (b"#" * (1 << 20) + b"##", "is larger than 1 MiB"),
        (None, "cannot read the settings file"),
    ],
    ids=["garbage", "unknown table", "large", "missing"],
)
def test_unreadable_settings_are_refused(fails, tmp_path, content, expected):
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    for words in (("ls",), ("nodes", "approve", "x")):
        line = fails(*words, "--config", path)
        assert expected in line
        assert str(path) in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nodez",), "Did you mean 'nodes'"),
        (("ps",), "there is no verb 'ps': 'tpiedge top' shows"),
        (("serve",), "'tpiedge master MODEL' serves a model"),
        (("stop", "qwen3:4b"), "Ctrl-C where 'tpiedge master'"),
        (("create", "mine", "-f", "Modelfile"), "'tpiedge import-gguf FILE --name NAME'"),
        (("run", "gemma:9b"), "gemma:9b is not supported yet; nearest: gemma2-9b or granite3.3-8b"),
        (("pull", "glm:27b"), "glm:27b is not supported yet; nearest: gemma2-27b or gemma3-27b"),
        (("pull", "qwen3:4"), "did you mean qwen3-4b"),
        (("master", "qwen3:4b"), "to fetch it from the hub: tpiedge pull qwen3:4b"),
        (("run", "demo", "--prompt", "x", "--seed", BIG), f"--seed is {BIG}"),
        (("run", "demo", "--prompt", "x", "--memory", f"{BIG}GB"), "a computer can have"),
        (("run", "demo", "--prompt", "x", "--cache", "/dev/null"), "cannot write to"),
        (("bench", "allreduce", "--nodes", ""), "not a list of numbers"),
        (("pack", "demo", "--out", "/dev/null"), "/dev/null is not a pack"),
        (("run",), "no MODEL is given: 'demo', a name from `tpiedge ls`"),
        (("master", "demo", "--model", "demo"), "give the model once"),
        (("run", "demo", "x", "--prompt", "y"), "give the prompt once: as the argument or with --prompt"),
        (("chat", "x", "--prompt", "y"), "give the prompt once: as the argument or with --prompt"),
        (("unpack", "/nowhere", "out"), "no model '/nowhere'"),
        (("config", "show", "runn"), "did you mean run?"),
        (("doctor", "--connect", "host:99999"), "not an address: 'host:99999'"),
        (("pull", "../../etc"), "is not a model on the hub"),
        (("rm", "/", "--yes"), "no model '/': give"),
        (("shards", "rm", ""), "there are: none"),
        (("shards", "limit", "5"), "5 has no unit: did you mean 5GB?"),
        (("token", "create", "--expires", "999999999d"), "366 days"),
        (("token", "revoke", ""), "'tpiedge token ls' shows"),
        (("nodes",), "start one with 'tpiedge master MODEL'"),
        (("chat", "--prompt", "x", "--url", "http://[bad"), "is not a URL"),
        (("chat", "--prompt", "x", "--url", f"http://{CLOSED}"), "no master answers at"),
        (("chat", "--prompt", "x", "--url", f"http://{CLOSED}", "--api-key", "a\nb"), "characters"),
        (("testbed", "up", "nope"), "there is no testbed 'nope': give a file (./NAME.toml) or one of"),
        (("testbed", "down"), "name a testbed, or say --all"),
        (("testbed", "link", "nope", "x", "--latency", "5"), "'5' is not a time; write it like 0.25 ms"),
        (("worker",), "no master found within 5 s"),
        (("worker", "--connect", NOWHERE), f"the host {NOWHERE} is not known here"),
        (("worker", "--connect", CLOSED), "connection refused"),
        (("worker", "--token", ""), "not a token"),
        (("worker", "--token-file", "missing"), "no token in missing within 0 s"),
        (("worker", "--connect", CLOSED, "--model-dir", "missing"), "does not exist"),
        (("worker", "--kv-disk", "lots"), "not a size: 'lots'"),
        (("master", "demo", "--keep-context", "5"), "5 has no unit: did you mean 5GB?"),
        (("master", "demo", "--keep-context", "1GB"), "give --api-key-file, or --share-prefixes"),
        (("cache", "clear", "--all-nodes"), "no master runs on this computer"),
        (("master", "demo", "--http", "0.0.0.0:80"), "--insecure"),
        (("master", "demo", "--switch", "off", "--models", "tales"), "leave one of them out"),
        (("master", "demo", "--listen", "127.0.0.1:7070", "--announce"), "other machines cannot reach"),
        (("master", "demo", "--context", BIG), "is out of range"),
        (("master", "nope", "--context", 100, "--kv-tokens", 99), "--kv-tokens 99 is less than the context"),
        (("master", "demo", "--api-key-file", "missing"), "there is no file missing with API keys"),
        (("master", "demo", "--tls-cert", "no", "--tls-key", "no"), "cannot read the certificate no"),
        (("master", "demo", "--cors-origin", "*"), "lets every web page in"),
        (("master", "demo", "--trusted-proxy", "pi.local"), "is not an address like 127"),
        (("master", "demo", "--public-name", "https://a.b"), "is not a name like ai.example"),
        (("master", "demo", "--token-file", "."), "is a directory"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_invalid_arguments_are_refused(fails, arguments, expected):
    status = PEER if expected in OF_PEERS else USER
    line = fails(*arguments, status=status)
    assert expected in line, line


def test_port_in_use_error_names_the_process_and_advice(fails):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fails("master", "--model", "demo", "--threads", 1, "--http", f"127.0.0.1:{port}",
                     "--listen", f"127.0.0.1:{free_ports()}")  # fmt: skip
        assert f"cannot listen on 127.0.0.1:{port} for the API: " in line
        assert f", pid {os.getpid()} has this port; stop it, or give another port with --http" in line


def test_unreachable_hub_is_reported(fails, monkeypatch):
    for endpoint in (f"http://{CLOSED}", f"http://{NOWHERE}"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert "check the network or HF_ENDPOINT" in fails("pull", "org/name", status=FAILED)
