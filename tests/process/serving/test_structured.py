"""Answers of a form, and calls of tools, by a real cluster: through a loss, and beside a grammar that is too much."""

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import jsonschema
import openai
import pytest

from tests.process.serving.serving import Serving
from tpiedge.model.source import DEMO, resolve_model

LIMIT_S = 90.0
USER = [{"role": "user", "content": "Tell me a story"}]
ROWS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"enum": [1, 2, 3]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "minItems": 12,
    "maxItems": 12,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
KILLS_ITS_PROCESS = "start: r0\n" + "\n".join(f'r{i}: r{i + 1} | "x"' for i in range(3000)) + '\nr3000: "y"'
#: Of the demo model, which was not taught to call tools.
TEMPLATE = """{{- bos_token -}}
{%- if tools -%}{{- '<|system|>Write <tool_call>{"name", "arguments"}</tool_call>: ' + tools | tojson -}}{%- endif -%}
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' + message['content'] | trim -}}
{%- for call in message.tool_calls or [] -%}{{- call.function.name + call.function.arguments | tojson -}}{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


#: Its token stands for what opens a call, which the demo model has none for.
RARE = "<|system|>"
OPENER = "<tool_call>"


def calling_model(folder: Path) -> Path:
    """The demo model, with a template that tells it of tools."""
    model = folder / "demo"
    shutil.copytree(resolve_model(DEMO), model)
    (model / "chat_template.jinja").write_text(TEMPLATE.replace(RARE, "<|user|>"))
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace(RARE, OPENER))
    return model


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving], tmp_path_factory: pytest.TempPathFactory) -> Serving:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    model = calling_model(tmp_path_factory.mktemp("model"))
    cluster = clusters(
        "--min-workers", 1, "--parallel", 4, "--context", 1024, "--alias", "demo", model=str(model)
    )
    cluster.start_master()
    cluster.start_worker("ann")
    cluster.wait_ready(2)
    return cluster


def rows(cluster: Serving) -> tuple[str, dict]:
    with cluster.client() as client:
        answer = client.chat.completions.create(
            model=cluster.model,
            messages=USER,
            max_tokens=700,
            seed=1,
            response_format={"type": "json_schema", "json_schema": {"name": "rows", "schema": ROWS}},
        )
    assert answer.choices[0].finish_reason == "stop"
    return answer.choices[0].message.content, answer.usage.model_dump()


def test_an_answer_keeps_to_its_schema_through_a_loss(cluster: Serving) -> None:
    """The machines that are left go on within the JSON, and it is what it would have been."""
    undisturbed, _ = rows(cluster)
    jsonschema.validate(json.loads(undisturbed), ROWS)
    node = cluster.workers["ann"].node
    with ThreadPoolExecutor(1) as threads:
        with cluster.crawling():
            asked = threads.submit(rows, cluster)
            cluster.wait_until(lambda status: status["running"] == 1)
        losses = cluster.losses()
        node.kill()
        text, usage = asked.result(LIMIT_S)
    assert text == undisturbed
    assert 1 <= usage["pauses"]["count"] <= cluster.losses() - losses


@pytest.mark.fault("H3", "a grammar that takes too much time or memory is refused; others are answered")
def test_a_grammar_that_kills_its_process_is_refused_and_others_are_answered(cluster: Serving) -> None:
    cluster.wait_ready(2)
    before = cluster.rank_zero().pid
    with ThreadPoolExecutor(1) as threads, cluster.client() as client:
        other = threads.submit(rows, cluster)
        with pytest.raises(openai.BadRequestError, match="too much time or memory"):
            client.chat.completions.create(
                model=cluster.model, messages=USER, extra_body={"grammar": KILLS_ITS_PROCESS}
            )
        jsonschema.validate(json.loads(other.result(LIMIT_S)[0]), ROWS)
    assert cluster.rank_zero().pid == before


def test_a_call_that_is_required_and_its_result(cluster: Serving) -> None:
    cluster.wait_ready(2)
    with cluster.client() as client:
        choice = client.chat.completions.create(
            model=cluster.model,
            messages=USER,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
        ).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        said = [*USER, choice.message.model_dump(exclude_none=True), result]
        again = client.chat.completions.create(model=cluster.model, messages=said, tools=[TOOL], max_tokens=8)
    assert again.choices[0].message.role == "assistant"


def calling(cluster: Serving) -> dict:
    """A request whose answer opens a call whenever it may, by a model that knows nothing of calls otherwise."""
    texts = {"model": cluster.model, "prompt": OPENER, "add_special_tokens": False}
    answer = httpx.post(f"{cluster.url}/tokenize", json=texts, timeout=LIMIT_S, trust_env=False)
    (opener,) = answer.json()["tokens"]
    bias = {str(opener): 100}
    return {
        "model": cluster.model,
        "messages": USER,
        "tools": [TOOL],
        "max_tokens": 700,
        "seed": 3,
        "logit_bias": bias,
    }


def arguments_of(cluster: Serving, asked: dict) -> list[str]:
    """Of each call of the weather in the answer to `asked`."""
    with cluster.client() as client:
        calls = client.chat.completions.create(**asked).choices[0].message.tool_calls
    assert {call.function.name for call in calls} == {"weather"}
    return [call.function.arguments for call in calls]


def streamed_arguments(
    cluster: Serving, asked: dict, begun: threading.Event | None = None
) -> list[list[str]]:
    """The parts of each call's arguments. Sets `begun` with the first that is not empty."""
    parts: dict[int, list[str]] = {}
    with cluster.client() as client:
        for chunk in client.chat.completions.create(**asked, stream=True):
            for call in chunk.choices[0].delta.tool_calls or ():
                parts.setdefault(call.index, []).append(call.function.arguments)
                if begun is not None and call.function.arguments:
                    begun.set()
    return [parts[index] for index in sorted(parts)]


def test_a_call_of_the_model_s_own_accord_is_one_of_a_tool(cluster: Serving) -> None:
    """Streamed and whole, it is the same."""
    cluster.wait_ready(2)
    asked = calling(cluster)
    whole = arguments_of(cluster, asked)
    assert len(whole) > 1
    for arguments in whole[:-1]:  # the last one may be cut off
        jsonschema.validate(json.loads(arguments), TOOL["function"]["parameters"])
    parts = streamed_arguments(cluster, asked)
    assert ["".join(one) for one in parts] == whole
    assert len(parts[0]) > 3


def test_a_call_goes_on_through_a_loss(cluster: Serving) -> None:
    """The machines that are left go on within the call, and it is what it would have been."""
    cluster.wait_ready(2)
    asked = calling(cluster)
    undisturbed = arguments_of(cluster, asked)
    node, begun = cluster.workers["ann"].node, threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with cluster.crawling():
            answer = threads.submit(streamed_arguments, cluster, asked, begun)
            assert begun.wait(LIMIT_S)
            assert not answer.done()
            node.kill()
        parts = answer.result(LIMIT_S)
    assert ["".join(one) for one in parts] == undisturbed


def test_what_is_wrong_with_a_schema_is_one_clear_line(cluster: Serving) -> None:
    schema = {"type": "string", "pattern": "(never closed"}
    answer = httpx.post(
        f"{cluster.url}/v1/chat/completions",
        json={
            "model": cluster.model,
            "messages": USER,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        },
        timeout=LIMIT_S,
        trust_env=False,
    )
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "unclosed group" in message
    assert "\n" not in message
