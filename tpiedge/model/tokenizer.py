"""Turns text into token ids and back with the model's `tokenizer.json`.

The file is untrusted, so a process with limits (`text_child.py`) reads it. The process also makes and checks a table of
tokens. With the table, this module turns ids into text.
"""

import base64
import codecs
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.model.folder import ConfigFields, has_file, read_bytes
from tpiedge.model.held_text import begun_length
from tpiedge.model.named_tokens import AddedToken, ending_ids, read_named_tokens
from tpiedge.model.text_child import LoadedTokenizer
from tpiedge.model.text_process import TextProcess
from tpiedge.sanitise import quote, sanitised_line

_MAX_BYTES: Final = 64_000_000  # the largest in use (262,000 tokens) has 35 MB
_CHARACTER: Final = 3  # ids of an unfinished character at most
_CONTEXT: Final = 32  # preceding ids that are read: more than a character has
_MEMORY: Final = 3 << 30  # a large vocabulary takes 200 MB and reserves more


class TooManyTokens(Exception):
    """A text has more tokens than allowed, at least `tokens`."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class Tokenizer:
    """A model's tokenizer. `special_tokens` maps names like "bos_token" to texts, `vocabulary` texts to ids."""

    def __init__(
        self,
        library: LoadedTokenizer | TextProcess,
        special_tokens: Mapping[str, str],
        tokens: Sequence[AddedToken] = (),
        config: ConfigFields | None = None,
    ) -> None:
        """`library` has opened tokenizer.json. `tokens` are added to the vocabulary. `config` may ask for BOS and EOS
        around texts."""
        self._library = library
        self.special_tokens = MappingProxyType(dict(special_tokens))
        table = library.do(b"A", json.dumps(tokens).encode())
        self.vocabulary: Mapping[str, int] = MappingProxyType(table["vocabulary"])
        self._parts = [None if part is None else base64.b64decode(part) for part in table["parts"]]
        self._heads: dict[int, bytes] = {int(number): text.encode() for number, text in table["heads"]}
        self._added = {int(number): text for number, text, _ in table["added"]}
        self.special_ids = frozenset(int(number) for number, _, flags in table["added"] if flags["special"])
        self._wrapping = _wrapping(config, self) if config else None

    @staticmethod
    def open(folder: Path, *, here: bool = False) -> "Tokenizer":
        """Reads `tokenizer.json` and files beside it. With `here`, the tokenizer runs in this process."""
        if not has_file(folder, "tokenizer.json"):
            older = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
            if any(has_file(folder, name) for name in older):
                raise UserError(
                    f"{folder} has its tokenizer in an older format only: make a tokenizer.json with transformers' "
                    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                )
            raise UserError(f"{folder} has no tokenizer.json: download the model again, all of its files")
        data = read_bytes(folder, "tokenizer.json", _MAX_BYTES)
        path = folder / "tokenizer.json"
        with _refusing(f"{path} is not a tokenizer that can be read", "; download the model again"):
            library = LoadedTokenizer() if here else TextProcess("the model's tokenizer", _MEMORY, 120.0)
            found = library.do(b"O", data)
        own = {number: AddedToken(text, flags) for number, text, flags in found}
        config, special, added = read_named_tokens(folder, own)
        with _refusing(f"{path} cannot be used", "; get the model from a source you trust"):
            return Tokenizer(library, special, added, config)

    @property
    def bos_id(self) -> int | None:
        return self.token_id(self.special_tokens.get("bos_token", ""))

    @property
    def eos_id(self) -> int | None:
        return self.token_id(self.special_tokens.get("eos_token", ""))

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of tokens that end an answer, EOS first."""
        own = () if self.eos_id is None else (self.eos_id,)
        return tuple(dict.fromkeys((*own, *ending_ids(self.vocabulary, self._added))))

    def token_id(self, token: str) -> int | None:
        return self.vocabulary.get(token)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, most: int = 0
    ) -> list[int]:
        """Returns token ids. `add_special` adds BOS and EOS. `parse_special` finds special tokens in the text.
        `most` is the largest number of ids; 0 means no limit. Raises UserError, TooManyTokens."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            what = f"the text has {quote(text[error.start])}, a byte or half a character that is no Unicode"
            raise UserError(f"{what}: send it as UTF-8") from None
        wrapping = self._wrapping if add_special else None
        special = add_special and wrapping is None
        ids = self._do(b"E", {"text": text, "special": special, "parse": parse_special, "most": most})
        if isinstance(ids, int):
            raise TooManyTokens(ids)
        before, after = wrapping or ((), ())
        return [*before, *ids, *after]

    def count(self, text: str) -> int:
        """Counts the tokens of a long text, part by part. Raises UserError."""
        return int(self._do(b"C", text.encode(errors="replace").decode()))

    def _do(self, letter: bytes, value: object) -> Any:
        with _refusing("the model's tokenizer cannot encode the text"):
            return self._library.do(letter, json.dumps(value).encode())

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        detokenizer = Detokenizer(self, shown=frozenset() if skip_special else self.special_ids)
        return "".join([*map(detokenizer.push, ids), detokenizer.finish()])

    def token_bytes(self, token_id: int) -> bytes | None:
        """Returns the bytes that `token_id` adds within a text, or None for an unknown id."""
        return self._parts[token_id] if 0 <= token_id < len(self._parts) else None

    def head_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of `token_id` at the beginning of a text."""
        return self._heads.get(token_id, self.token_bytes(token_id) or b"")

    def all_bytes(self) -> list[bytes]:
        """Returns the bytes of every id, added tokens included."""
        found = [part or b"" for part in self._parts]
        for number, text in self._added.items():
            found[number] = text.encode()
        return found


class Detokenizer:
    """Decodes one growing sequence of ids. Leaves out special tokens, except the tokens in `shown`.

    1. The joined pieces equal the library's decoding of all ids at once. Bytes that are not UTF-8 become U+FFFD.
    2. Only an unfinished character is held back.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, shown: frozenset[int] = frozenset(), after: Sequence[int] = ()
    ) -> None:
        """`shown` has the special tokens to write. `after` has the ids before the sequence."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False
        self._held = ""  # text of the preceding ids that hold an unfinished character
        known = (token for token in after[-_CONTEXT:] if tokenizer.token_bytes(token) is not None)
        before = [token for token in known if token not in self._skipped]
        whole = len(before) - unfinished(tokenizer, before)
        for token in before[:whole]:
            self.push(token)
        self._decoder.reset()
        self._held = "".join(map(self.push, before[whole:]))

    def push(self, token_id: int) -> str:
        """Adds an id. Returns the text that is now certain."""
        if token_id in self._skipped:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if not data:
            return ""
        if not self._begun:
            self._begun = True
            data = self._tokenizer.head_bytes(token_id)
        text = self._held + self._decoder.decode(data)
        self._held = ""
        return text

    def finish(self) -> str:
        """Returns the text that was held back; an unfinished character becomes U+FFFD. Call it once."""
        return self._held + self._decoder.decode(b"", final=True)


def unfinished(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Counts the last ids that belong to an unfinished character."""
    data = b""
    for count, token_id in enumerate(reversed(ids[-_CHARACTER:]), start=1):
        data = (tokenizer.token_bytes(token_id) or b"") + data
        try:
            data.decode()
        except UnicodeDecodeError as error:
            if error.end == len(data) and error.reason == "unexpected end of data":
                return count
        else:
            return 0
    return 0


@contextmanager
def _refusing(what: str, advice: str = "") -> Iterator[None]:
    """Turns the library's errors, also a Rust panic, into UserError."""
    try:
        yield
    except TpiedgeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what} ({sanitised_line(error, 120)}){advice}") from None


def _wrapping(config: ConfigFields, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the ids before and after a text, or None if tokenizer.json decides."""
    if config.raw("add_bos_token") is None and config.raw("add_eos_token") is None:
        return None

    def wanted(name: str) -> tuple[int, ...]:
        text = tokenizer.special_tokens.get(name)
        if not config.flag(f"add_{name}", False) or text is None:
            return ()
        found = tokenizer.token_id(text)
        if found is None:
            config.refuse(f"add_{name}", f"is true, but the vocabulary has no {quote(text)}")
        return (found,)

    return wanted("bos_token"), wanted("eos_token")


class TextWriter:
    """Writes an answer's text up to the first stop string. Holds back unfinished characters and begun stop strings.
    If several stop strings end at one place, the longest counts."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stops: Sequence[str],
        after: Sequence[int] = (),
        marks: Sequence[str] = (),
    ) -> None:
        """`after` has the ids before the text, `marks` the special tokens to show. Raises UserError."""
        if not all(stops):
            raise UserError("a stop string is empty; leave it out")
        ids = (tokenizer.token_id(mark) for mark in marks) if tokenizer else ()
        shown = frozenset(token for token in ids if token is not None)
        self._detokenizer = Detokenizer(tokenizer, shown=shown, after=after) if tokenizer else None
        self._stops = tuple(stops)
        self._held = ""
        self.stop = ""  # the stop string that is complete
        self.length = 0  # characters so far, with those held back

    def push(self, token: int) -> tuple[str, bool]:
        """Adds a token. Returns (text that is now certain, whether a stop string is complete)."""
        if self._detokenizer is None:
            return "", False
        text = self._detokenizer.push(token)
        self.length += len(text)
        return self._before_stop(text)

    def finish(self) -> tuple[str, bool]:
        """Returns (text that was held back, whether a stop string is complete)."""
        if self._detokenizer is None:
            return "", False
        text, stopped = self._before_stop(self._detokenizer.finish())
        held, self._held = self._held, ""
        return text + held, stopped

    def _before_stop(self, text: str) -> tuple[str, bool]:
        if self.stop:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, begin = min(found)
            self._held, self.stop = "", text[begin:end]
            return text[:begin], True
        cut = len(text) - begun_length(text, *self._stops)
        self._held = text[cut:]
        return text[:cut], False
