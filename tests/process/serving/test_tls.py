import re
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest

from tests.process.command import Ended, wait_for
from tests.process.serving.serving import START_S, Serving


@pytest.mark.thin
@pytest.mark.skipif(shutil.which("openssl") is None, reason="software: openssl is not on this computer")
def test_self_signed_certificate_survives_restarts(tmp_path: Path, here: Callable[..., Ended]) -> None:
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
            local = here("chat", "--state", cluster.state, "--prompt", "Hi", "--max-tokens", 2)
            assert local.status == 0, local.err
            assert here("nodes", "--state", cluster.state).status == 0
            arguments = ("chat", "--url", url, "--prompt", "Hi", "--max-tokens", 2)
            assert here(*arguments, "--tls-fingerprint", fingerprint).out == local.out
            refused = here(*arguments)
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


def test_master_for_other_machines_takes_the_keys_of_tpiedge_keys(
    tmp_path: Path, here: Callable[..., Ended]
) -> None:
    """A running master sees an added and a revoked key; a master on loopback needs none."""
    cluster = Serving(tmp_path / "cluster")

    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{cluster.url}/v1/models", headers=headers, trust_env=False).status_code

    def add(name: str) -> str:
        return here("keys", "add", name, "--state", cluster.state).out.strip()

    try:
        phone = add("phone")
        cluster.start_master()
        assert status("none") == 200
        cluster.master.end()
        cluster.options = ("--http", f"0.0.0.0:{cluster.http_port}")
        cluster.start_master()
        laptop = add("laptop")
        assert [status(key) for key in ("none", phone, laptop)] == [401, 200, 200]
        assert here("keys", "revoke", "phone", "--state", cluster.state).status == 0
        assert [status(key) for key in (phone, laptop)] == [401, 200]
    finally:
        cluster.close()
