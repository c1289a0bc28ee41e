"""Texts that clients send as documents and files: of all their kinds those that a model without eyes can read."""

import base64
import binascii

from tpiedge.api.errors import ApiError, refused
from tpiedge.api.fields import BodyFields, needed


def document_text(block: BodyFields) -> str:
    """The text of Anthropic's block of type "document", below its title and its context. Raises ApiError."""
    source = block.nested("source")
    if source is None:
        raise refused(f"'{block.name('source')}' is missing", block.name("source"))
    block.ignore(("citations", "cache_control"))
    kind = source.text("type")
    if kind == "text":
        text = needed(source, "data")
        source.text("media_type")
    elif kind == "content":
        text = _content(source)
    else:
        raise _only_text(source.name("type"), "'text' or 'content'")
    source.overlook()
    return _below([block.text("title"), block.text("context")], text)


def search_result_text(block: BodyFields) -> str:
    """The text of Anthropic's block of type "search_result", below its title and where it was found. Raises
    ApiError."""
    block.ignore(("citations", "cache_control"))
    return _below([block.text("title"), block.text("source")], _content(block))


def file_text(file: BodyFields) -> str:
    """The text of OpenAI's file with data of its own, below its name. Raises ApiError."""
    data, name = file.text("file_data") or "", file.text("filename")
    kind, _, encoded = data.partition(";base64,")
    if not kind.startswith("data:text/") or not encoded:
        raise _only_text(file.name("file_data"), "data:text/plain;base64,...")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        where = file.name("file_data")
        raise refused(f"'{where}' is not UTF-8 text in base64", where) from None
    file.overlook()
    return _below([name], text)


def _content(fields: BodyFields) -> str:
    """A text, or the texts of an array of blocks."""
    value = fields.raw("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong_type("content", "a string or an array of texts", value)
    texts = []
    for index, block in enumerate(value):
        key = f"content[{index}]"
        if not isinstance(block, dict):
            raise fields.wrong_type(key, "an object", block)
        inner = fields.inner(block, key)
        if inner.text("type") != "text":
            raise _only_text(inner.name("type"), "'text'")
        texts.append(needed(inner, "text"))
        inner.ignore(("cache_control", "citations"))
        inner.overlook()
    return "\n".join(texts)


def _below(heads: list[str | None], text: str) -> str:
    return "\n".join([*(head for head in heads if head), text])


def _only_text(where: str, wanted: str) -> ApiError:
    return refused(f"'{where}' must be {wanted}: only text is read here", where, "unsupported_value")
