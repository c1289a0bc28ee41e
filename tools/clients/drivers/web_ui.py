"""Open WebUI without its server, which needs gigabytes of packages: the two routers that send its requests, with their
own payload and session code. All else that they import does nothing. So what they are called with is written here,
after what its web page asks for a chat, for its title and for tools."""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from typing import Any
from unittest.mock import AsyncMock, MagicMock

from using import QUESTION, TOOL, URL, use

MODEL = "demo"
#: By their own code.
_REAL = frozenset(
    f"open_webui.{name}"
    for name in (
        "constants", "env", "routers", "routers.openai", "routers.ollama", "utils", "utils.chat_variables",
        "utils.headers", "utils.json_codec", "utils.misc", "utils.model_ids", "utils.payload", "utils.response",
        "utils.session_pool", "utils.task",
    )
)  # fmt: skip


class Nothing(types.ModuleType):
    """A module in which everything is there and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = AsyncMock(name=name, return_value=None)
        setattr(self, name, found)
        return found


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `Nothing` for every module of Open WebUI that is not real."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        if name.startswith("open_webui.") and name not in _REAL:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def main() -> None:
    os.environ |= {"WEBUI_SECRET_KEY": "none", "DATA_DIR": tempfile.mkdtemp()}
    sys.meta_path.insert(0, Stubs())
    spec = importlib.util.find_spec("open_webui")
    sys.modules["open_webui"] = importlib.util.module_from_spec(
        spec
    )  # but for its first lines: its command line
    asyncio.run(chats())


async def setting(name: str, default: object = None) -> object:
    """Returns a setting of the page's administrator."""
    return {"openai.enable": True, "ollama.enable": True, "ollama.api_configs": {}}.get(name, default)


async def chats() -> None:
    from open_webui.routers import ollama, openai
    from open_webui.utils import session_pool

    told = {"headers": {"Content-Type": "application/json", "Authorization": "Bearer none"}, "cookies": {}}
    for router in (openai, ollama):
        router.get_headers_and_cookies = AsyncMock(return_value=(told["headers"], told["cookies"]))
        router.Models.get_model_by_id = AsyncMock(return_value=None)
        router.Config.get = AsyncMock(side_effect=setting)
    openai.is_anthropic_url = lambda _url: False
    openai.get_openai_runtime_config = AsyncMock(return_value=(True, [f"{URL}/v1"], ["none"], {}))
    openai.get_openai_connection = AsyncMock(return_value=(f"{URL}/v1", "none", {}))
    ollama.get_ollama_url = AsyncMock(return_value=(URL, 0))
    models = {MODEL: {"id": MODEL, "urlIdx": 0}}
    held = {f"{MODEL}": {"model": MODEL, "urls": [0]}, f"{MODEL}:latest": {"model": MODEL, "urls": [0]}}
    state = types.SimpleNamespace(OPENAI_MODELS=models, OLLAMA_MODELS=held, BASE_MODELS=[])
    request = types.SimpleNamespace(
        app=types.SimpleNamespace(state=state), state=types.SimpleNamespace(), headers={}, cookies={}
    )
    user = MagicMock(id="1", role="admin")
    messages = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": QUESTION}]
    chat = {"model": MODEL, "messages": messages, "stream": True, "metadata": {"chat_id": "1"}}
    title = {
        "model": MODEL,
        "messages": [messages[1]],
        "stream": False,
        "max_completion_tokens": 48,
        "metadata": {"task": "title_generation"},
    }
    with_usage = {"stream_options": {"include_usage": True}}

    use("models")
    await openai.get_all_models_responses(request, user)
    use("chat stream")
    await ended(await openai.generate_chat_completion(request, {**chat, **with_usage, "max_tokens": 8}, user))
    use("a title")
    await ended(await openai.generate_chat_completion(request, dict(title), user))
    use("tools")
    await ended(
        await openai.generate_chat_completion(request, {**chat, "tools": [TOOL], "max_tokens": 8}, user)
    )
    use("ollama models")
    await ollama.send_get_request(request, f"{URL}/api/tags", user=user)
    await ollama.send_get_request(request, f"{URL}/api/ps", user=user)
    await ollama.send_get_request(request, f"{URL}/api/version", user=user)
    use("ollama chat stream")
    options = {"options": {"num_predict": 8, "temperature": 0.7}}
    await ended(await ollama.generate_chat_completion(request, {**chat, **options}, user=user))
    await session_pool.close_session()


async def ended(answer: Any) -> None:
    """Reads an answer to its end."""
    body = getattr(answer, "body_iterator", None)
    if body is not None:
        async for _ in body:
            pass


main()
