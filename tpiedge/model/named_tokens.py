"""Tokens that the files beside `tokenizer.json` name, in the order in which transformers 5 adds them.

Laws, as transformers has them:

1. With `added_tokens_decoder` in tokenizer_config.json, special_tokens_map.json and added_tokens.json add nothing.
   Without it, special_tokens_map.json overrules tokenizer_config.json.
2. First come the tokens of `added_tokens_decoder`, or of added_tokens.json and tokenizer.json, by their numbers; then
   the named ones ("eos_token"), then other special tokens. A token's id follows from this order, not from its number.
3. A named token is special.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpiedge.model.fields import ConfigFields
from tpiedge.model.folder import has_file, read_json
from tpiedge.model.text_child import MAX_TOKEN
from tpiedge.sanitise import quote

_MAX_BYTES: Final = 10_000_000
_MAX_TOKENS: Final = 100_000
_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NAME_END: Final = "_token"
_DECODER, _MAP, _ADDED = "added_tokens_decoder", "special_tokens_map.json", "added_tokens.json"
_EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass
class AddedToken:
    """A token's text and its flags (_FLAGS), as the tokenizers library has them."""

    content: str
    flags: dict[str, bool]


@dataclass(frozen=True)
class NamedTokens:
    """`config`: what the files say, one over the other. `special`: the text of "bos_token", "eos_token" and so on.
    `added`: what is to be added to the tokens of tokenizer.json, which may be among them."""

    config: ConfigFields
    special: Mapping[str, str]
    added: tuple[AddedToken, ...]


def read_named_tokens(folder: Path, own: Mapping[int, AddedToken]) -> NamedTokens:
    """Read the files of `folder`. `own`: the added tokens of tokenizer.json. Raises UserError."""
    where = str(folder / "tokenizer_config.json")
    first, older = (_read(folder, name) for name in ("tokenizer_config.json", _MAP))
    complete = first.get(_DECODER) is not None
    config = ConfigFields(where, {**older, **first} if complete else {**first, **older})
    found = _Found(ConfigFields(where, first), ConfigFields(str(folder / _MAP), {} if complete else older))
    numbered = _decoder(found.first) if complete else _legacy(folder, found.texts()) | dict(own)
    added = [token for _, token in sorted(numbered.items(), key=lambda item: item[0])]
    known = {token.content for token in (*own.values(), *added)}
    named = found.named()
    for special in (*named.values(), *found.others()):
        if special.content not in known:
            added.append(special)
            known.add(special.content)
    if len(added) > _MAX_TOKENS:
        config.refuse(
            _DECODER, f"and what is beside it name more than {_MAX_TOKENS} tokens: no model has as many"
        )
    texts = {token.content for token in named.values()}
    for token in added:
        if token.content in texts:
            token.flags["special"] = True
    more = {name: token.content for name, token in named.items() if name.endswith(_NAME_END)}
    usual = {name: token.content for name, token in _Found(config, config).usual().items()}
    return NamedTokens(config, more | usual, tuple(added))


class _Found:
    """The names and lists in tokenizer_config.json (`first`) and special_tokens_map.json (`older`)."""

    def __init__(self, first: ConfigFields, older: ConfigFields) -> None:
        self.first = first
        self._older = older

    def usual(self) -> dict[str, AddedToken]:
        """Name -> token, of the names that all models know."""
        found: dict[str, AddedToken] = {}
        for name in _NAMES:
            fields = self._older if self._older.raw(name) is not None else self.first
            if token := _token(fields, name, fields.raw(name)):
                found[name] = token
        return found

    def named(self) -> dict[str, AddedToken]:
        """Name -> token: the usual names, then those of the model."""
        found = self.usual()
        for fields in (self._older, self.first):
            names = (name for name in fields.names() if name.endswith(_NAME_END) and name not in _NAMES)
            for name in names:
                if isinstance(fields.raw(name), str) and (token := _token(fields, name, fields.raw(name))):
                    found[name] = token
        for fields in (self.first, self._older):
            values = _extra(fields)
            for name, value in values.items() if isinstance(values, dict) else ():
                if token := _token(fields, _EXTRA, value):
                    found[str(name)] = token
        return found

    def others(self) -> Iterator[AddedToken]:
        """Special tokens without names."""
        extra = list(self._extra())
        yield from extra
        if extra:
            return
        for fields in (self._older, self.first):
            if isinstance(fields.raw(_ADDITIONAL), list):
                yield from _tokens(fields, fields.raw(_ADDITIONAL))
                return

    def texts(self) -> set[str]:
        """The texts that make a token of added_tokens.json special."""
        return {token.content for token in (*self.usual().values(), *self._extra())}

    def _extra(self) -> Iterator[AddedToken]:
        yield from _tokens(self.first, _extra(self.first))
        yield from _tokens(self._older, self._older.raw(_EXTRA))


def _tokens(fields: ConfigFields, values: object) -> Iterator[AddedToken]:
    for value in values if isinstance(values, list) else ():
        if token := _token(fields, _EXTRA, value):
            yield token


def _extra(fields: ConfigFields) -> object:
    return fields.raw(_EXTRA) or fields.raw(_ADDITIONAL)


def _read(folder: Path, name: str) -> Mapping[str, object]:
    return read_json(folder, name, _MAX_BYTES) if has_file(folder, name) else {}


def _decoder(config: ConfigFields) -> dict[int, AddedToken]:
    """The tokens of `added_tokens_decoder` by their numbers."""
    decoder = config.fields(_DECODER)
    found: dict[int, AddedToken] = {}
    for key in decoder.names():
        value = decoder.raw(key)
        if not (key.isascii() and key.isdigit() and len(key) < 10 and isinstance(value, dict)):
            decoder.refuse(quote(key), "is not a token's number and its object")
        if token := _token(decoder, quote(key), value, special=False):
            found[int(key)] = token
    return found


def _legacy(folder: Path, special: set[str]) -> dict[int, AddedToken]:
    """The tokens of added_tokens.json by their numbers."""
    fields = ConfigFields(str(folder / _ADDED), _read(folder, _ADDED))
    found: dict[int, AddedToken] = {}
    for text in fields.names():
        number = fields.integer(text, 0, 1 << 31)
        value = {"content": text, "special": text in special}
        if token := _token(fields, quote(text), value, special=False):
            found[number] = token
    return found


def _token(fields: ConfigFields, name: str, value: object, *, special: bool = True) -> AddedToken | None:
    """The token that `value` is, a text or an object; None where it is none. `special`: whether it is, anyhow."""
    flags: dict[str, bool] = {}
    text = value
    if isinstance(value, dict):
        text = value.get("content")
        flags = {flag: value[flag] for flag in _FLAGS if isinstance(value.get(flag), bool)}
    if text is None or text == "":
        return None
    if not isinstance(text, str) or len(text) > MAX_TOKEN or not _is_unicode(text):
        fields.refuse(name, f"is {quote(value)}, not a token's text of at most {MAX_TOKEN} characters")
    return AddedToken(text, flags | ({"special": True} if special else {}))


def _is_unicode(text: str) -> bool:
    """Whether it has no half of a surrogate pair, as JSON may."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
