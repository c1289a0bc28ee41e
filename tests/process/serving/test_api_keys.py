"""A real master with a file of keys: nobody sees them, and one that is taken out is refused."""

import openai
import psutil
import pytest

from tests.process.command import run_command
from tests.process.serving.serving import Serving


@pytest.mark.thin
def test_keys_in_a_file(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("# who\nphone: sk-phone\nlaptop: sk-laptop\n")
    cluster = Serving(tmp_path / "cluster", "--api-key-file", path, "--log-level", "debug")
    try:
        master = cluster.start_master()
        cluster.wait_ready(1)
        machine = psutil.Process(master.pid)
        assert not any("sk-" in word for one in (machine, *machine.children(True)) for word in one.cmdline())
        options = {"base_url": f"{cluster.url}/v1", "max_retries": 0, "timeout": 30}
        with openai.OpenAI(api_key="sk-phone", **options) as phone:
            phone.completions.create(model="demo", prompt="Once", max_tokens=2)
            path.write_text("laptop: sk-laptop\n")
            with pytest.raises(openai.AuthenticationError):
                phone.completions.create(model="demo", prompt="Once", max_tokens=2)
        asked = ("chat", "--url", cluster.url, "--prompt", "Hi", "--max-tokens", 2)
        assert run_command(*asked, TPIEDGE_API_KEY="sk-laptop").status == 0
        refused = run_command(*asked, TPIEDGE_API_KEY="sk-phone")
        assert refused.status != 0
        assert "TPIEDGE_API_KEY" in refused.err
        assert "API keys that are gone" in cluster.logs()
        assert "sk-" not in cluster.logs()
    finally:
        cluster.close()
