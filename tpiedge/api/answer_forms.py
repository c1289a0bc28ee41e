"""Every form that answers have: where it is asked for, what reads its requests, and what writes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tpiedge.api.anthropic import AnthropicFormat, read_messages_request
from tpiedge.api.asked import Asked, FormatName
from tpiedge.api.chat_request import read_chat
from tpiedge.api.completion_request import read_completion
from tpiedge.api.embeddings import EmbeddingFormat, read_embeddings
from tpiedge.api.formats import AnswerFormat, AnswerHead
from tpiedge.api.ollama import (
    OllamaEmbedFormat,
    OllamaFormat,
    read_embed,
    read_generate,
    read_old_embeddings,
    read_ollama_chat,
)
from tpiedge.api.openai_format import OpenAIFormat
from tpiedge.api.responses_format import ResponsesFormat
from tpiedge.api.responses_request import read_response
from tpiedge.api.service import Service


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """One of them. `path`: of its route, where it has one of its own; `prefix`: what the answers' names begin with;
    `read`: what makes an Asked of a request for the answer of that name; `kind`: as its API calls it, where clients
    may come again for it, or have it deleted."""

    path: str
    prefix: str
    read: Callable[[dict[str, object], Service, str], Asked]
    write: Callable[[AnswerHead], AnswerFormat]
    kind: str = ""


ANSWER_FORMS: Final[Mapping[FormatName, AnswerForm]] = {
    "completion": AnswerForm("/v1/completions", "cmpl", read_completion, OpenAIFormat, "text_completion"),
    "chat": AnswerForm("/v1/chat/completions", "chatcmpl", read_chat, OpenAIFormat, "chat.completion"),
    "embeddings": AnswerForm("/v1/embeddings", "embd", read_embeddings, EmbeddingFormat),
    "embeddings-base64": AnswerForm("", "embd", read_embeddings, EmbeddingFormat),
    "message": AnswerForm("/v1/messages", "msg", read_messages_request, AnthropicFormat, "message"),
    "response": AnswerForm("/v1/responses", "resp", read_response, ResponsesFormat, "response"),
    "ollama-chat": AnswerForm("/api/chat", "chat", read_ollama_chat, OllamaFormat),
    "ollama-generate": AnswerForm("/api/generate", "generate", read_generate, OllamaFormat),
    "ollama-embed": AnswerForm("/api/embed", "embed", read_embed, OllamaEmbedFormat),
    "ollama-embeddings": AnswerForm("/api/embeddings", "embed", read_old_embeddings, OllamaEmbedFormat),
}
