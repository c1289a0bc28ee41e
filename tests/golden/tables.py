"""The golden tables, JSON lines of requests and, under "get", results. `tools/make_golden.py` writes only "get",
so a new case is a line without it.

requests/*.jsonl: a usual request, then variants: `set` and `drop` change the body, `send` replaces it. A list is a
refusal with status 400, `answer` a digest of the response; {"$many": [x, n]} is x n times, {"$deep": n} nested arrays.
requests/corpus.jsonl: a request of tests/corpus by client and number, compared with the first of its path.
frames/*.jsonl: a case, then the lines of the response's body. `script` is what the cluster does; after each event of
`again` a client asks for the rest of a recorded answer.
wire/fields.jsonl: the accepted values of each message's fields (`messages.py`).
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.golden.driving import Cluster, Heard, cluster_requests, digest, fixed
from tests.golden.messages import field_lines
from tests.http.conftest import DEMO
from tpiedge.model.tokenizer import Tokenizer

FOLDER: Final = Path(__file__).parent
CORPUS: Final = FOLDER.parent / "corpus"
JSON: Final = {"content-type": "application/json"}
SAID: Final = (("say", "one two three four"), ("finish", "stop"))
TABLES: Final = sorted(f"{path.parent.name}/{path.name}" for path in FOLDER.glob("*/*.jsonl"))


def table(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def written(name: str) -> str:
    lines = [json.loads(line) for line in table(name).splitlines()]
    kind, _, rest = name.partition("/")
    tokenizer = Tokenizer.open(DEMO, here=True)
    with fixed():
        if kind == "wire":
            found: list[Any] = list(field_lines())
        elif kind == "frames":
            found = asyncio.run(_frames([line for line in lines if isinstance(line, dict)], tokenizer))
        elif rest == "corpus.jsonl":
            found = asyncio.run(_recorded(tokenizer))
        else:
            found = asyncio.run(_requests(lines, tokenizer))
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in found)


async def _requests(lines: list[dict[str, Any]], tokenizer: Tokenizer) -> list[Any]:
    cluster, head = Cluster(tokenizer), lines[0]
    cluster.script = SAID
    usual: dict[str, Any] = {}
    found = []
    for line in lines:
        case = {key: value for key, value in line.items() if key != "get"}
        body = {**head["body"], **_unfolded(line.get("set", {}))}
        for key in line.get("drop", ()):
            del body[key]
        sent = _unfolded(line["send"]) if "send" in line else json.dumps(body)
        heard = await cluster.hear(
            line.get("method", "POST"),
            line.get("path", head["path"]),
            JSON | line.get("headers", {}),
            sent.encode("utf-8", "surrogatepass"),
        )
        got = _got(cluster, heard, tokenizer)
        found.append({**case, "get": _difference(got, usual)})
        usual = usual or got
    cluster.close()
    return found


def _got(cluster: Cluster, heard: Heard, tokenizer: Tokenizer) -> dict[str, Any]:
    got: dict[str, Any] = {"status": heard.status, **heard.headers}
    if heard.status == 200:
        got["answer"] = digest(heard.body)
        if not cluster.requests:
            got["answer"] = heard.body.decode() if len(heard.body) < 400 else got["answer"]
    elif heard.body:
        got["refusal"] = _refusal(heard.body)
    if cluster.requests:
        got |= cluster_requests(cluster.requests, tokenizer)
    return got


def _refusal(body: bytes) -> object:
    """Usual ones are short: [message, param, code] in OpenAI's shape, [message, type] in Anthropic's, [message] in
    Ollama's."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode()
    kind, said = "invalid_request_error", found.get("error")
    match said:
        case str(message) if found == {"error": message}:
            return [message]
        case {"message": message, "param": param, "code": code} if found == {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }:
            return [message, param, code]
        case {"message": message} if found == {"type": "error", "error": {"type": kind, "message": message}}:
            return [message, kind]
    return found


def _difference(got: Mapping[str, Any], usual: Mapping[str, Any]) -> object:
    """A refusal with status 400 and no other header is told as it is."""
    if got.keys() == {"status", "refusal"} and got["status"] == 400:
        return got["refusal"]
    found = {key: value for key, value in got.items() if key not in usual or usual[key] != value}
    if got["status"] == 200:  # of a refusal nothing else is there
        found |= {key: None for key in usual if key not in got}
    return found


def _unfolded(value: Any) -> Any:
    match value:
        case {"$many": [one, int(count)]}:
            return one * count if isinstance(one, str) else [_unfolded(one)] * count
        case {"$deep": int(count)}:
            return json.loads("[" * count + "]" * count)
        case dict():
            return {key: _unfolded(inner) for key, inner in value.items()}
        case list():
            return [_unfolded(inner) for inner in value]
    return value


async def _recorded(tokenizer: Tokenizer) -> list[Any]:
    cluster = Cluster(tokenizer)
    cluster.script = SAID
    found, usual = [], dict[str, Any]()
    for path in sorted(CORPUS.glob("*.json")):
        for number, one in enumerate(json.loads(path.read_text(encoding="utf-8"))["requests"]):
            body = b"" if one["body"] is None else json.dumps(one["body"]).encode()
            heard = await cluster.hear(one["method"], one["path"], one["headers"], body)
            got = _got(cluster, heard, tokenizer)
            said = _difference(got, usual.setdefault(one["path"], {}))
            usual[one["path"]] = usual[one["path"]] or got
            found.append({"client": path.stem, "number": number, "path": one["path"], "get": said})
    cluster.close()
    return found


async def _frames(cases: list[dict[str, Any]], tokenizer: Tokenizer) -> list[Any]:
    found: list[Any] = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(tokenizer, Path(folder) / "answers" if "again" in case else None)
            cluster.script = case["script"]
            heard = await cluster.hear("POST", case["path"], JSON, json.dumps(case["body"]).encode())
            found += _told({key: value for key, value in case.items() if key != "get"}, heard)
            for after in case.get("again", ()):
                where = f"{case['path']}/{heard.name}"
                rest = await cluster.hear("GET", where, {"last-event-id": str(after)}, b"")
                found += _rest(heard, rest, after)
            cluster.close()
    return found


def _told(case: Mapping[str, Any], heard: Heard) -> Iterator[Any]:
    head = {"status": heard.status, **heard.headers, "whole": heard.whole}
    yield {**case, "get": head}
    yield from heard.body.decode().splitlines(keepends=True)


def _rest(heard: Heard, rest: Heard, after: int) -> Iterator[Any]:
    """Yields what a client gets that comes again: how many of the last bytes, or others."""
    yield f"after {after}: {rest.status}, {'whole' if rest.whole else 'unfinished'}"
    same = rest.body and heard.body.endswith(rest.body)
    yield f"the last {len(rest.body)} bytes" if same else rest.body.decode()
