"""Real masters with a file of keys, which nobody sees and of which one is taken out, with TLS, and with other names."""

import contextlib
import re
import shutil
import ssl

import httpx
import openai
import psutil
import pytest

from tests.process.command import run_command, wait_for
from tests.process.serving.serving import START_S, Serving


def cached(client, address="192.0.2.1"):
    """How many tokens of a long prompt from that address were kept from earlier requests."""
    answer = client.completions.create(
        model="demo",
        prompt="Once upon a time " * 100,
        max_tokens=2,
        extra_headers={"X-Forwarded-For": address},
    )
    return answer.usage.prompt_tokens_details.cached_tokens


@pytest.mark.thin
def test_keys_in_a_file(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("# who\nphone: sk-phone\nlaptop: sk-laptop\n")
    cluster = Serving(tmp_path / "cluster", "--api-key-file", path, "--log-level", "debug")
    try:
        master = cluster.start_master()
        cluster.wait_ready(1)
        for one in (psutil.Process(master.pid), *master.children()):
            with contextlib.suppress(psutil.NoSuchProcess):  # a child that had little to do
                assert not any("sk-" in word for word in one.cmdline())
        options = {"base_url": f"{cluster.url}/v1", "max_retries": 0, "timeout": START_S}
        with (
            openai.OpenAI(api_key="sk-phone", **options) as phone,
            openai.OpenAI(api_key="sk-laptop", **options) as laptop,
        ):
            found = [cached(client) for client in (phone, laptop, phone)]
            assert found[:2] == [0, 0], "no key finds what was computed for another one"
            assert found[2] > 0
            pages = httpx.get(f"{cluster.url}/metrics", headers={"X-Api-Key": "sk-laptop"}).text
            assert f"tpiedge_cached_prompt_tokens_total {found[2]:.1f}\n" in pages
            path.write_text("laptop: sk-laptop\n")
            with pytest.raises(openai.AuthenticationError):
                phone.completions.create(model="demo", prompt="Once", max_tokens=2)
        asked = ("chat", "--url", cluster.url, "--prompt", "Hi", "--max-tokens", 2)
        assert run_command(*asked, TPIEDGE_API_KEY="sk-laptop").status == 0
        refused = run_command(*asked, TPIEDGE_API_KEY="sk-phone")
        assert refused.status != 0
        assert "TPIEDGE_API_KEY" in refused.err
        wait_for(lambda: "API keys that are gone" in cluster.logs(), START_S)
        assert "sk-" not in cluster.logs()
    finally:
        cluster.close()


@pytest.mark.thin
@pytest.mark.skipif(shutil.which("openssl") is None, reason="software: openssl is not on this computer")
def test_tls_with_a_certificate_of_its_own(tmp_path):
    cluster = Serving(tmp_path / "cluster", "--tls-self-signed")
    url = cluster.url.replace("http:", "https:")
    log = cluster.folder / "master.log"
    try:
        for starts in (1, 2):
            cluster.start_master(wait=False)
            wait_for(lambda starts=starts: log.read_text().count("ready: 1 node") == starts, START_S)
            assert log.read_text().count(f"serving demo at {url}/v1") == starts
            *before, fingerprint = re.findall(
                "SHA-256 fingerprint ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})", log.read_text()
            )
            assert before == [fingerprint] * (starts - 1)
            local = run_command("chat", "--state", cluster.state, "--prompt", "Hi", "--max-tokens", 2)
            assert local.status == 0, local.err
            assert run_command("nodes", "--state", cluster.state).status == 0
            asked = ("chat", "--url", url, "--prompt", "Hi", "--max-tokens", 2)
            assert run_command(*asked, "--tls-fingerprint", fingerprint).out == local.out
            refused = run_command(*asked)
            assert refused.status != 0
            assert "--tls-fingerprint" in refused.err
            context = ssl.create_default_context(cafile=cluster.state / "master" / "tls-cert.pem")
            with openai.OpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=httpx.Client(verify=context)
            ) as client:
                assert client.models.list().data[0].id == "demo"
            cluster.master.end()
    finally:
        cluster.close()


@pytest.mark.thin
def test_other_names_and_a_page(tmp_path):
    page = "https://chat.example"
    cluster = Serving(
        tmp_path / "cluster",
        "--alias",
        "gpt-4o-mini",
        "--alias",
        "fast",
        "--alias",
        "demo",
        "--cors-origin",
        page,
        "--public-name",
        "ai.example.org",
        "--trusted-proxy",
        "127.0.0.0/8",
        "--share-prefixes",
    )
    try:
        cluster.start_master()
        cluster.wait_ready(1)
        with cluster.client() as client:
            answer = client.completions.create(
                model="gpt-4o-mini", prompt="Once", max_tokens=2, extra_headers={"Origin": page}
            )
            assert answer.usage.completion_tokens == 2
            model, *aliases = client.models.list().data
            assert {"gpt-4o-mini", "fast"} <= {alias.id for alias in aliases}
            assert {"gpt-4o-mini", "fast"} <= set(model.also_called) - {model.id} == set(model.also_called)
            with pytest.raises(openai.PermissionDeniedError):
                client.models.list(extra_headers={"Origin": "https://evil.example"})
            client.models.list(extra_headers={"Host": "ai.example.org"})
            assert cached(client, "192.0.2.1") == 0
            assert cached(client, "192.0.2.2") > 0
        asked = ("chat", "--url", cluster.url, "--prompt", "Hi", "--max-tokens", 2, "--model")
        assert run_command(*asked, "fast").status == 0
        assert "serves demo, not slow" in run_command(*asked, "slow").err
    finally:
        cluster.close()
