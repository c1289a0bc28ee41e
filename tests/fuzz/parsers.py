"""All parsers of untrusted bytes, each with its first inputs and the errors that it may end with."""

from collections.abc import Mapping
from types import MappingProxyType

from tests.fuzz import chats, checkpoints, gguf_files, packs, sockets, vocabularies
from tests.fuzz.parser import Parser

PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        parser.name: parser
        for module in (checkpoints, gguf_files, vocabularies, chats, packs, sockets)
        for parser in module.PARSERS
    }
)
