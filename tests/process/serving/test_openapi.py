"""A real master is asked whatever its OpenAPI document permits, and much that it does not, by schemathesis."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.process.serving.serving import START_S, Serving
from tpiedge.host.private_file import read_private

_TOOL = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
_EXAMPLES = 1
_ANSWER_S = 30
#: Ten times what it takes with a processor for itself.
_LIMIT_S = 600.0
_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
#: A request that names another model does not get far.
_MODEL = {"const": "demo"}


def _named(schema: object) -> object:
    """The document, whose requests all name the model that is served."""
    if isinstance(schema, list):
        return [_named(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _named(value) for key, value in schema.items()}
    properties = found.get("properties")
    if isinstance(properties, dict) and "model" in properties and "id" not in properties:
        found["properties"] = {**properties, "model": _MODEL}
    return found


@pytest.mark.fault("H2", "no status of 500 or more, no answer missing, by requests from the OpenAPI document")
@pytest.mark.fault("H3", "no status of 500 or more, no answer missing, by requests from the OpenAPI document")
@pytest.mark.skipif(_TOOL is None, reason="software: schemathesis is not installed: make dev has it")
def test_fuzzed_openapi_requests_do_not_break_the_master(tmp_path: Path, exact) -> None:
    cluster = Serving(tmp_path / "cluster", "--context", 128)
    try:
        cluster.start_master()
        cluster.wait_ready(1)
        document = tmp_path / "openapi.json"
        shown = httpx.get(f"{cluster.url}/openapi.json", timeout=START_S).json()
        document.write_text(json.dumps(_named(shown)))
        secret = read_private(cluster.state / "master" / "admin.json")["secret"]
        ended = subprocess.run(
            [_TOOL, "run", document, "--url", cluster.url, "--header", f"Authorization: Bearer {secret}",
             "--phases", "fuzzing", "--max-examples", str(_EXAMPLES), "--checks", ",".join(_CHECKS),
             "--request-timeout", str(_ANSWER_S), "--continue-on-failure", "--seed", "1", "--no-color"],
            cwd=tmp_path, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        exact(cluster)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{late}: {(late.stdout or b'').decode()}")
    finally:
        cluster.close()
