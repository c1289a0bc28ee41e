"""Answers of a form by a real cluster, beside a grammar that is too much; and a model that knows tools."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    "minItems": 4,
    "maxItems": 4,
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


@pytest.mark.fault("H3", "a grammar that takes too much time or memory is refused; others are answered")
def test_grammar_that_kills_its_process_is_refused(cluster: Serving) -> None:
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
