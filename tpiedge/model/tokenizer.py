"""Text to token ids and back, with the model's own `tokenizer.json`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend

from tpiedge.errors import UserError
from tpiedge.model.end_tokens import ending_ids
from tpiedge.model.fields import ConfigFields
from tpiedge.model.folder import has_file, read_bytes
from tpiedge.model.named_tokens import MAX_TOKEN, read_named_tokens
from tpiedge.model.tokenizer_growth import text_growth
from tpiedge.sanitise import quote, sanitised_line

_MAX_BYTES = 64_000_000  # the largest in use (262,000 tokens) has 35 MB
# Parsing takes memory by the number of JSON values, up to a kilobyte for an object: bound them before parsing. A
# vocabulary of 262,000 tokens with twice as many merges has 1.4 million commas and 0.6 million lists.
_MAX_MARKS = {b",": 2_000_000, b"[": 800_000, b"{": 100_000}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class _Wrapping:
    """The ids put around a text. None: what `tokenizer.json` itself says."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class Tokenizer:
    """`special_tokens` maps "bos_token", "eos_token", ... to their text, for chat templates. `growth`: how many tokens
    a byte of a text can become at most."""

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str],
        wrapping: _Wrapping | None = None,
        growth: float = 1.0,
    ) -> None:
        self._backend = backend
        self._wrapping = wrapping
        self.growth = growth
        self.special_tokens = MappingProxyType(dict(special_tokens))
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )

    @staticmethod
    def open(folder: Path) -> "Tokenizer":
        """Read `tokenizer.json` and what stands beside it. Raises UserError."""
        if not has_file(folder, "tokenizer.json"):
            _refuse_without_json(folder)
        data = read_bytes(folder, "tokenizer.json", _MAX_BYTES)
        backend, growth = _parse(data, folder / "tokenizer.json")
        backend.no_padding()
        backend.no_truncation()
        named = read_named_tokens(folder, backend.get_added_tokens_decoder())
        _add(backend, named.added, folder)
        wrapping = _wrapping(named.config, backend, named.special)
        return Tokenizer(backend, named.special, wrapping, growth)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's embedding may have more rows."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """Text -> id of every token, added ones included."""
        return MappingProxyType(self._backend.get_vocab(with_added_tokens=True))

    @property
    def bos_id(self) -> int | None:
        return self.token_id(self.special_tokens.get("bos_token", ""))

    @property
    def eos_id(self) -> int | None:
        return self.token_id(self.special_tokens.get("eos_token", ""))

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer: the tokenizer's own, then those that are known by their texts."""
        own = () if self.eos_id is None else (self.eos_id,)
        added = self._backend.get_added_tokens_decoder()
        return tuple(dict.fromkeys((*own, *ending_ids(self.vocabulary, added))))

    def token_id(self, token: str) -> int | None:
        """The id of the token that is written exactly so."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def token(self, token_id: int) -> str | None:
        """How the vocabulary writes `token_id`; None beyond it."""
        found = self._backend.id_to_token(token_id)
        return None if found is None else str(found)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of `text`; special tokens written out in it become themselves, or text without `parse_special`.

        `add_special` puts BOS (and EOS) around it where the model's tokenizer does: wanted for a plain
        prompt, not for a rendered chat template, which writes its own. Raises UserError for half a surrogate
        pair, or where the tokenizer has no tokens for the text.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text has {quote(text[error.start])}, a byte or half a character that is no Unicode: send it as "
                "UTF-8"
            ) from None
        wrapping = self._wrapping if add_special else None
        backend = self._backend if parse_special else self._literal
        try:
            ids = backend.encode(text, add_special_tokens=add_special and wrapping is None).ids
        except BaseException as error:
            _reraise_own(error)
            raise UserError(
                f"the model's tokenizer cannot encode the text ({sanitised_line(error, 120)})"
            ) from None
        return ids if wrapping is None else [*wrapping.before, *ids, *wrapping.after]

    @cached_property
    def _literal(self) -> Backend:
        """The same tokenizer, to which special tokens are text. It shares the vocabulary."""
        own = self._backend
        found = Backend(own.model)
        steps = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
        for step in steps:
            if getattr(own, step) is not None:
                setattr(found, step, getattr(own, step))
        found.add_tokens([token for _, token in sorted(own.get_added_tokens_decoder().items())])
        found.encode_special_tokens = True
        return found

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; ids beyond the vocabulary have no text. Raises UserError where the decoder fails."""
        try:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))
        except BaseException as error:
            _reraise_own(error)
            raise UserError(
                f"the model's tokenizer cannot decode its tokens ({sanitised_line(error, 120)})"
            ) from None

    def token_bytes(self, token_id: int) -> bytes | None:
        """What `token_id` adds to a text that has begun: with its leading space, and exact where it is a part of a
        character. None beyond the vocabulary."""
        token = self.token(token_id)
        if token is None:
            return None
        once, twice = (self.decode([token_id] * count, skip_special=False) for count in (1, 2))
        exact = _spelled_bytes(token) if _REPLACEMENT in once else None
        if exact is not None:
            return exact
        # A decoder drops the space at the start of a text, which is not the token's second place.
        return (twice[len(once) :] if twice.startswith(once) else once).encode()

    def all_bytes(self) -> list[bytes]:
        """`token_bytes` of every id, empty for those without a token; special tokens as they are written. Takes seconds
        for large vocabularies of other kinds than byte-level."""
        added = self._backend.get_added_tokens_decoder()
        byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)
        found = [b""] * (1 + max(self.vocabulary.values(), default=-1))
        for token, token_id in self.vocabulary.items():
            if token_id in added:
                found[token_id] = added[token_id].content.encode()
                continue
            spelled = _spelled_bytes(token) if byte_level else None
            found[token_id] = (self.token_bytes(token_id) or b"") if spelled is None else spelled
        return found


def fallback_byte(token: str | None) -> int | None:
    """The byte of a token that SentencePiece writes as "<0xE4>"; None for any other token."""
    fallback = _FALLBACK.fullmatch(token or "")
    return None if fallback is None else int(fallback[1], 16)


def _spelled_bytes(token: str) -> bytes | None:
    """The bytes that `token` stands for, if its vocabulary spells bytes, which decoding it alone would not give.

    SentencePiece writes "<0xE4>", byte-level BPE one character per byte. None for any other token.
    """
    fallback = fallback_byte(token)
    if fallback is not None:
        return bytes([fallback])
    table = _byte_level()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return None


@cache
def _byte_level() -> Mapping[str, int]:
    """GPT-2's alphabet: bytes that are printable in Latin-1 are themselves, the others follow from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _parse(data: bytes, path: Path) -> tuple[Backend, float]:
    """(the library's object, tokens that a byte can become)."""
    for mark, limit in _MAX_MARKS.items():
        if data.count(mark) > limit:
            raise UserError(f"{path} lists more than {limit} values: no model needs as many")
    # Before the library reads it: it normalizes the added tokens at once.
    growth = text_growth(data, str(path))
    try:
        backend = Backend.from_buffer(data)
    except BaseException as error:
        _reraise_own(error)
        raise UserError(
            f"{path} is not a tokenizer that can be read ({sanitised_line(error, 120)}); download the model again"
        ) from None
    # A token's text is copied wherever the token is found.
    longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=0)
    if longest > MAX_TOKEN:
        raise UserError(
            f"{path} has a token of {longest} characters; at most {MAX_TOKEN} are accepted: get the model from a "
            "source you trust"
        )
    return backend, growth


def _reraise_own(error: BaseException) -> None:
    """Let KeyboardInterrupt and the like pass: the Rust side reports a panic as one that is no Exception either."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _add(backend: Backend, tokens: Sequence[AddedToken], folder: Path) -> None:
    """Raises UserError where the library cannot have them."""
    try:
        backend.add_tokens(list(tokens))
    except BaseException as error:
        _reraise_own(error)
        raise UserError(
            f"{folder}: the tokens beside tokenizer.json cannot be added ({sanitised_line(error, 120)}); "
            "download the model again"
        ) from None


def _wrapping(config: ConfigFields, backend: Backend, special: Mapping[str, str]) -> _Wrapping | None:
    """`add_bos_token` and `add_eos_token`, if one is given, overrule tokenizer.json, as in transformers 5."""
    if config.raw("add_bos_token") is None and config.raw("add_eos_token") is None:
        return None

    def wanted(flag: str, name: str) -> tuple[int, ...]:
        if not config.flag(flag, False) or name not in special:
            return ()
        found = backend.token_to_id(special[name])
        if found is None:
            config.refuse(flag, f"is true, but the vocabulary has no {quote(special[name])}")
        return (int(found),)

    return _Wrapping(wanted("add_bos_token", "bos_token"), wanted("add_eos_token", "eos_token"))


def _refuse_without_json(folder: Path) -> None:
    if any(has_file(folder, name) for name in ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")):
        raise UserError(
            f"{folder} has its tokenizer in an older format only: make a tokenizer.json with transformers' "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    raise UserError(f"{folder} has no tokenizer.json: download the model again, all of its files")
