#!/usr/bin/env bash
# openai 3.52.0 (Python): once one server-sent event of a stream has had an `id:` line, an empty line after a comment
# counts as an event without data, and the stream fails as that is no JSON. A server that numbers its events and sends
# `: ping` with an empty line, as many do to keep connections alive, breaks every such client; without numbers, or
# without the empty line, the same stream is read to its end. anthropic 2.14.0, whose decoder is alike, reads on.
#
# Seen: "numbered: JSONDecodeError", and the text of both chunks for the three other streams.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.52.0 anthropic==2.14.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

import anthropic
import httpx2
import openai


def chunk(text: str) -> str:
    choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(body)}\n\n"


def transport(body: str) -> httpx2.Client:
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text=body, headers=headers)))


def completion(first: str, comment: str) -> str:
    """The text of a stream of two chunks with a comment between them, or the error's class."""
    body = f"{first}{chunk('one')}{comment}{chunk(' two')}data: [DONE]\n\n"
    client = openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="k", max_retries=0, http_client=transport(body))
    try:
        return "".join(part.choices[0].text for part in client.completions.create(model="m", prompt="p", stream=True))
    except Exception as error:
        return type(error).__name__


def message() -> str:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}}
    event = f"id: 1\nevent: content_block_delta\ndata: {json.dumps(delta)}\n\n"
    client = anthropic.Anthropic(
        base_url="http://127.0.0.1:1", api_key="k", max_retries=0, http_client=transport(f"{event}: ping\n\n{event}")
    )
    try:
        asked = client.messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "p"}], stream=True
        )
        return "".join(part.delta.text for part in asked)
    except Exception as error:
        return type(error).__name__


found = {
    "numbered": completion("id: 1\n", ": ping\n\n"),
    "numbered, no empty line": completion("id: 1\n", ": ping\n"),
    "not numbered": completion("", ": ping\n\n"),
    "anthropic, numbered": message(),
}
print(openai.__version__, anthropic.__version__, *(f"{name}: {text}" for name, text in found.items()), sep="\n")
assert found["numbered"] == "JSONDecodeError", "openai behaves otherwise now"
assert found["numbered, no empty line"] == found["not numbered"] == "one two", "openai behaves otherwise now"
assert found["anthropic, numbered"] == "oneone", "anthropic behaves otherwise now"
PYTHON
