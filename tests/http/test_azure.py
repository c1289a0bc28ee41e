"""Clients of Azure's OpenAI get the same answers by the paths and the header for keys that they know."""

import httpx
import openai
import pytest

from tests.http.conftest import answers

ASKED = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("deployment", [None, "babbler"])
def test_azure_s_client_is_answered(serve, service, deployment):
    text = answers(service, "Once upon a time")
    server = serve(keys=("secret",))
    with openai.AzureOpenAI(
        azure_endpoint=server.url, azure_deployment=deployment, api_key="secret", api_version="2024-10-21"
    ) as client:
        model = "babbler" if deployment is None else "gpt-4o"
        answer = client.chat.completions.create(model=model, messages=ASKED)
        assert answer.choices[0].message.content == text
        answer = client.completions.create(model=model, prompt="hi")
        assert answer.choices[0].text == text


def test_the_newer_path_has_everything(serve, service):
    text = answers(service, "Once")
    with openai.OpenAI(base_url=f"{serve().url}/openai/v1/", api_key="none") as client:
        assert client.responses.create(model="babbler", input="hi").output_text == text
        assert client.models.list().data[0].id == "babbler"


def test_another_deployment_is_not_served(serve):
    url = f"{serve().url}/openai/deployments/other/chat/completions?api-version=2024-10-21"
    answer = httpx.post(url, json={"messages": ASKED, "model": "babbler"}, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "path", ["/openai/v1/../admin/nodes", "/openai/deployments/x/admin/nodes", "/openai/admin/nodes"]
)
def test_no_other_path_is_reached_so(serve, path):
    assert httpx.get(f"{serve(keys=('secret',)).url}{path}", trust_env=False).status_code in (401, 404)
