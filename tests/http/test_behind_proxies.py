"""The configurations of docs/proxies.md, run by the programs themselves before a cluster that answers by script."""

import getpass
import re
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.http.conftest import SECRET
from tpiedge.api.limits import Limits

DOCUMENT = Path(__file__).parents[2] / "docs" / "proxies.md"
LIMIT_S = 60.0
BODY = {"model": "babbler", "prompt": "Once", "max_tokens": 50}
ONE, OTHER = "127.0.0.2", "127.0.0.3"
#: Of each program: what is another where it runs without rights, a certificate and a public name; and its commands that
#: check a file, and that stay in the foreground with it.
NGINX_REST = """user {user}; pid {folder}/pid; error_log {folder}/log; daemon off;
events {{}}
http {{
access_log off;
client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
uwsgi_temp_path {folder}; scgi_temp_path {folder};
{text}
}}
"""
PROGRAMS = {
    "nginx": (
        {
            "listen 443 ssl;": "listen 127.0.0.1:{port};",
            "    ssl_certificate /etc/nginx/ai.example.org.pem;\n": "",
            "    ssl_certificate_key /etc/nginx/ai.example.org.key;\n": "",
        },
        NGINX_REST,
        ("nginx", "-t", "-p", "{folder}", "-c", "{file}"),
        ("nginx", "-p", "{folder}", "-c", "{file}"),
    ),
    "caddy": (
        {"ai.example.org {{": "http://ai.example.org:{port} {{\n    bind 127.0.0.1"},
        "{{\n    admin off\n    auto_https off\n}}\n{text}",
        ("caddy", "validate", "--adapter", "caddyfile", "--config", "{file}"),
        ("caddy", "run", "--adapter", "caddyfile", "--config", "{file}"),
    ),
    "haproxy": (
        {"bind :443 ssl crt /etc/haproxy/ai.example.org.pem": "bind 127.0.0.1:{port}"},
        "{text}",
        ("haproxy", "-c", "-f", "{file}"),
        ("haproxy", "-db", "-f", "{file}"),
    ),
}
FENCES = {"nginx": "nginx", "caddy": "caddyfile", "haproxy": "haproxy"}


def written(program, folder, port, server):
    """The file with what the document says, and the command's words with it."""
    (text,) = re.findall(rf"^```{FENCES[program]}\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    others, around, check, run = PROGRAMS[program]
    others = others | {"127.0.0.1:8080": "{}:{}".format(*server.address)}
    for said, other in others.items():
        said, other = said.replace("{{", "{"), other.replace("{{", "{").replace("{port}", str(port))
        assert text.count(said) == 1, said
        text = text.replace(said, other)
    file = folder / "config"
    file.write_text(around.format(folder=folder, text=text, user=getpass.getuser()))
    commands = [[word.format(folder=folder, file=file) for word in command] for command in (check, run)]
    return commands


@pytest.fixture(params=PROGRAMS)
def behind(request, serve, tmp_path):
    """Clients from addresses, of a server behind each of the programs."""
    program = request.param
    if shutil.which(program) is None:
        pytest.skip(f"software: {program} is not on this computer")
    server = serve(
        public_names=["ai.example.org"],
        proxies=["127.0.0.1"],
        limits=Limits(ping_s=600, quiet_s=600),
    )
    with socket.socket() as free:  # the programs may listen there beside it
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    check, run = written(program, tmp_path, port, server)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)}
    checked = subprocess.run(
        check, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert checked.returncode == 0, checked.stderr
    clients = []

    def client(source):
        clients.append(
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                transport=httpx.HTTPTransport(local_address=source),
                headers={"Host": "ai.example.org"},
                timeout=LIMIT_S,
            )
        )
        return clients[-1]

    with (tmp_path / "output").open("wb") as output:
        running = subprocess.Popen(run, env=environment, stdout=output, stderr=output)
    try:
        wait_for(client(ONE), running)
        yield client
    finally:
        for one in clients:
            one.close()
        running.terminate()
        running.wait(LIMIT_S)


def wait_for(client, running):
    """Waits until the program answers, and knows that the server does."""
    for _ in range(600):
        assert running.poll() is None
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.1)
    pytest.fail("it does not answer")


@pytest.mark.fault(
    "H13", "nginx, Caddy and HAProxy as documented: what a client writes of its address has no effect"
)
def test_clients_behind_a_proxy_are_told_apart(behind, service):
    one, other = behind(ONE), behind(OTHER)
    lies = {"X-Forwarded-For": OTHER, "Forwarded": f"for={OTHER}"}

    def ask(client, **options):
        service.script = lambda generation: (generation.say(5), generation.finish())
        answer = client.post("/v1/completions", json=BODY, **options)
        assert answer.status_code == 200, answer.text
        return service.generations.get(timeout=LIMIT_S)

    found = [ask(one), ask(other), ask(one, headers=lies)]
    assert [generation.client for generation in found] == [ONE, OTHER, ONE]
    scopes = [generation.request.scope for generation in found]
    assert scopes[0] == scopes[2] != scopes[1]


@pytest.mark.parametrize(("path", "begins"), [("/v1/completions", "data: {"), ("/api/generate", "{")])
def test_proxies_stream_at_once_and_forward_disconnects(behind, service, path, begins):
    body = BODY | {"stream": True}
    if path == "/api/generate":
        del body["max_tokens"]
    with behind(ONE).stream("POST", path, json=body) as answer:
        generation = service.generations.get(timeout=LIMIT_S)
        lines = (line for line in answer.iter_lines() if line.startswith(begins))
        for token in service.tokenizer.encode("Once there was", add_special=False)[:3]:
            generation.say(token)
            assert '"error"' not in next(lines), "before anything more is said"
    assert generation.cancelled.wait(LIMIT_S), "though nothing is sent that could not arrive"


def test_proxies_pass_the_page_and_long_prompts(behind, service):
    page = {"Origin": "https://ai.example.org", "Sec-Fetch-Site": "same-origin"}
    client = behind(ONE)
    assert client.get("/v1/models", headers=page).status_code == 200
    assert client.get("/", headers=page).status_code == 200
    code = client.post("/admin/link", headers={"Authorization": f"Bearer {SECRET}"}).json()["code"]
    assert client.post("/admin/key", headers={"Authorization": f"Bearer {code}", **page}).status_code == 403
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert client.get("/v1/models", headers=foreign).status_code == 403
    long = client.post("/v1/completions", json=BODY | {"prompt": "word " * 600_000})
    assert long.status_code in (400, 413)
    assert long.json()["error"]["message"], "the refusal is the server's own"
