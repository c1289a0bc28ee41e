"""What programs that write code send: Codex by OpenAI's responses, Claude Code by Anthropic's messages."""

import json

import anthropic
import httpx
import pytest

from tests.http.conftest import answers
from tests.http.test_other_tools import SCHEMA, claude, model, server
from tpiedge.api.answering import IGNORED

__all__ = ["claude", "model", "server"]

SHELL = {"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents",
    "tools": [
        {
            "type": "function",
            "name": "close",
            "description": "Ends one",
            "parameters": SCHEMA,
            "strict": False,
        },
        {"type": "custom", "name": "talk", "format": {"type": "text"}},
    ],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
}
CODEX = {
    "model": "babbler",
    "tools": [SHELL, AGENTS, PATCH, {"type": "web_search", "external_web_access": True}],
}


def said(name):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Paris"}}}}\n</tool_call>'


def asked(server, body, path="/v1/responses"):
    answer = httpx.post(f"{server.url}{path}", json=body, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer


def test_tools_that_are_no_functions_are_left_out_and_named(server, model):
    answers(model, "Once")
    answer = asked(server, {**CODEX, "input": "hi"})
    assert [tool["function"]["name"] for tool in model.template.seen[1]] == ["shell", "agents__close"]
    assert set(answer.headers[IGNORED].split(", ")) == {
        "tools[].tools[].custom.talk", "tools[].description", "tools[].custom.apply_patch", "tools[].web_search",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/v1/chat/completions", {"type": "custom", "custom": {"name": "apply_patch"}}),
        ("/v1/messages", {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}),
    ],
)
def test_other_apis_leave_them_out_too(server, model, path, tool):
    answers(model, "Once")
    messages = [{"role": "user", "content": "hi"}]
    answer = asked(server, {"model": "babbler", "max_tokens": 9, "messages": messages, "tools": [tool]}, path)
    assert not model.template.seen[1]
    assert answer.headers[IGNORED].startswith(f"tools[].{tool['type']}")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_in_a_namespace_comes_back_in_it(client, model, stream):
    answers(model, said("agents__close") + said("shell"))
    found = client.responses.create(**CODEX, input="hi", stream=stream)
    if not stream:
        items = found.output
    else:
        *events, last = found
        items = last.response.output
        begun = [event.item for event in events if event.type == "response.output_item.added"]
        assert [item.to_dict().get("namespace") for item in begun] == ["agents", None]
    calls = [item.to_dict() for item in items]
    assert [(call["name"], call.get("namespace")) for call in calls] == [("close", "agents"), ("shell", None)]
    result = {"type": "function_call_output", "output": [{"type": "input_text", "text": "done"}]}
    given = [result | {"call_id": call["call_id"]} for call in calls]
    client.responses.create(**CODEX, input=[{"role": "user", "content": "hi"}, *calls, *given])
    _, called, *gave = model.template.seen[0]
    assert [call["function"]["name"] for call in called["tool_calls"]] == ["agents__close", "shell"]
    assert [one["content"] for one in gave] == ["done", "done"]


def test_names_of_a_namespace_may_be_long_and_end_with_a_joint(client, model):
    spaces = [
        {"type": "namespace", "name": name, "tools": [SHELL | {"name": tool}]}
        for name, tool in (("mcp__git__", "log"), ("n" * 60, "show_it"))
    ]
    answers(model, said("mcp__git__log") + said("show_it"))
    calls = client.responses.create(model="babbler", input="hi", tools=spaces).output
    found = [(call.name, call.to_dict()["namespace"]) for call in calls]
    assert found == [("log", "mcp__git__"), ("show_it", "n" * 60)]


def test_the_call_of_a_namespace_can_be_required(client, model):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    answers(model, said("agents__close"))
    choice = {"type": "function", "name": "close", "namespace": "agents"}
    client.responses.create(**CODEX, input="hi", tool_choice=choice)
    grammar = model.generations.get(timeout=20).request.grammar
    assert "agents__close" in grammar.text
    assert "shell" not in grammar.text


def test_what_codex_sends_back_is_taken(server, model):
    answers(model, "Once")
    turns = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": "msg_1"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAA"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "name": "apply_patch", "output": "Done"},
    ]
    answer = asked(server, {**CODEX, "input": turns})
    _, called, gave = model.template.seen[0]
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}
    assert (gave["role"], gave["tool_call_id"], gave["content"]) == ("tool", "c1", "Done")
    assert "input[].web_search_call" in answer.headers[IGNORED]


@pytest.mark.parametrize("text", ["once " * 2000, "once " * 700, "x" * 40_000])
def test_a_prompt_that_is_too_long_is_so_in_words_that_shorten_it(claude, client, text):
    """Claude Code looks for these in Anthropic's API, LiteLLM for those in OpenAI's."""
    messages = [{"role": "user", "content": text}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: (\d+) tokens > 512 maximum"
    ) as raised:
        claude.messages.create(model="babbler", max_tokens=9, messages=messages)
    assert int(raised.value.message.split("long: ")[1].split()[0]) > 512
    for ask in (
        lambda: client.chat.completions.create(model="babbler", messages=messages),
        lambda: client.responses.create(model="babbler", input=messages),
    ):
        with pytest.raises(Exception, match="this model's maximum context length is 512 tokens") as refused:
            ask()
        assert refused.value.code == "context_length_exceeded"


def test_what_claude_code_sends_beside_messages_is_taken(server, model):
    answers(model, "Once")
    kept = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {
        "model": "babbler",
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Be brief.", **kept}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **kept}]}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "x"},
    }
    answer = asked(server, body, "/v1/messages?beta=true")
    ignored = answer.headers[IGNORED].split(", ")
    assert {"context_management", "output_config.effort", "metadata"} <= set(ignored)
    assert answer.json()["content"][0]["text"]
    assert httpx.head(server.url, trust_env=False).status_code == 200


def test_the_models_of_anthropic_have_their_card(serve, service, claude):
    service.also_called = ("claude-sonnet-4-5",)
    page = claude.models.list()
    assert [card.id for card in page.data] == ["babbler", "claude-sonnet-4-5"]
    assert (page.has_more, page.first_id, page.last_id) == (False, "babbler", "claude-sonnet-4-5")
    card = claude.models.retrieve("claude-sonnet-4-5")
    assert (card.type, card.id, card.display_name, card.max_input_tokens) == (
        "model",
        "babbler",
        "babbler",
        512,
    )
    assert card.created_at.year >= 2025
    with pytest.raises(anthropic.NotFoundError) as raised:
        claude.models.retrieve("other")
    assert json.loads(raised.value.response.text)["error"]["type"] == "not_found_error"
