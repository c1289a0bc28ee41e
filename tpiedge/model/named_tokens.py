"""Finds tokens named in files beside `tokenizer.json`, in the order of transformers 5. Finds tokens that end an answer.

Laws of transformers:

1. If tokenizer_config.json has `added_tokens_decoder`, special_tokens_map.json and added_tokens.json add no tokens.
   Otherwise special_tokens_map.json overrules tokenizer_config.json.
2. The first ids go to tokens of `added_tokens_decoder`, in the order of their numbers. Without that field, they go to
   tokens of added_tokens.json and tokenizer.json. Named tokens ("eos_token") follow, then other special tokens.
3. A named token is special.

A token that ends an answer is known by its text. A text that people write, like </s>, ends an answer in two cases: a
file lists its token as added or special, or no merge of two tokens makes the text.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tpiedge.model.folder import ConfigFields, has_file, read_json
from tpiedge.model.text_child import MAX_TOKEN
from tpiedge.sanitise import quote

_MAX_TOKENS: Final = 100_000
_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_DECODER, _ADDED = "added_tokens_decoder", "added_tokens.json"
_EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


class AddedToken(NamedTuple):
    """A token's text and flags (_FLAGS), as the tokenizers library has them."""

    content: str
    flags: dict[str, bool]


def read_named_tokens(
    folder: Path, own: Mapping[int, AddedToken]
) -> tuple[ConfigFields, Mapping[str, str], Sequence[AddedToken]]:
    """Returns (merged fields, texts by names like "eos_token", tokens to add). `own`: tokenizer.json's added tokens by
    id."""
    where = str(folder / "tokenizer_config.json")
    first, older = (_read(folder, name) for name in ("tokenizer_config.json", "special_tokens_map.json"))
    complete = first.get(_DECODER) is not None
    config = ConfigFields(where, {**older, **first} if complete else {**first, **older})
    # Without added_tokens_decoder the map overrules only the usual names.
    usual = {name: value for name, value in older.items() if name in _NAMES}
    adding = ConfigFields(where, first if complete else {**older, **first, **usual})
    others = _others(adding)
    if complete:
        numbered = _decoder(adding)
    else:
        extra = _others(ConfigFields(where, first))
        special = {token.content for token in (*_usual(adding).values(), *extra)}
        numbered = _legacy(folder, special) | dict(own)
    added = [numbered[number] for number in sorted(numbered)]
    known = {token.content for token in (*own.values(), *added)}
    named = _named(adding)
    for token in (*named.values(), *others):
        if token.content not in known:
            added.append(token)
            known.add(token.content)
    if len(added) > _MAX_TOKENS:
        why = f"and what is beside it name more than {_MAX_TOKENS} tokens: no model has as many"
        config.refuse(_DECODER, why)
    texts = {token.content for token in named.values()}
    for token in added:
        if token.content in texts:
            token.flags["special"] = True
    more = {name: token.content for name, token in named.items() if name.endswith("_token")}
    return config, more | {name: token.content for name, token in _usual(config).items()}, added


def _usual(fields: ConfigFields) -> dict[str, AddedToken]:
    return {name: token for name in _NAMES for token in _tokens(fields, name, fields.raw(name))}


def _named(fields: ConfigFields) -> dict[str, AddedToken]:
    names = (name for name in fields.values if name.endswith("_token") and name not in _NAMES)
    values = {name: fields.raw(name) for name in names if isinstance(fields.raw(name), str)}
    extra = fields.raw(_EXTRA)
    values |= extra if isinstance(extra, dict) else {}
    more = {name: token for name, value in values.items() for token in _tokens(fields, name, value)}
    return _usual(fields) | more


def _others(fields: ConfigFields) -> list[AddedToken]:
    extra = fields.raw(_EXTRA)
    values = extra if extra and isinstance(extra, list) else fields.raw(_ADDITIONAL)
    values = values if isinstance(values, list) else []
    return [token for value in values for token in _tokens(fields, _EXTRA, value)]


def _read(folder: Path, name: str) -> Mapping[str, object]:
    return read_json(folder, name, 10_000_000) if has_file(folder, name) else {}


def _decoder(config: ConfigFields) -> dict[int, AddedToken]:
    decoder = config.fields(_DECODER)
    found: dict[int, AddedToken] = {}
    for key in decoder.values:
        value = decoder.raw(key)
        if not (key.isascii() and key.isdigit() and len(key) < 10 and isinstance(value, dict)):
            decoder.refuse(quote(key), "is not a token's number and its object")
        for token in _tokens(decoder, quote(key), value, special=False):
            found[int(key)] = token
    return found


def _legacy(folder: Path, special: set[str]) -> dict[int, AddedToken]:
    fields = ConfigFields(str(folder / _ADDED), _read(folder, _ADDED))
    found: dict[int, AddedToken] = {}
    for text in fields.values:
        number = fields.integer(text, 0, 1 << 31)
        value = {"content": text, "special": text in special}
        for token in _tokens(fields, quote(text), value, special=False):
            found[number] = token
    return found


def _tokens(fields: ConfigFields, name: str, value: object, *, special: bool = True) -> Iterator[AddedToken]:
    """Reads a token from its text or object. `special` makes the token special, whatever its flag says."""
    flags: dict[str, bool] = {}
    text = value
    if isinstance(value, dict):
        text = value.get("content")
        flags = {flag: value[flag] for flag in _FLAGS if isinstance(value.get(flag), bool)}
    if text is None or text == "":
        return
    # JSON may have halves of surrogate pairs.
    if (
        not isinstance(text, str)
        or len(text) > MAX_TOKEN
        or any("\ud800" <= mark <= "\udfff" for mark in text)
    ):
        fields.refuse(name, f"is {quote(value)}, not a token's text of at most {MAX_TOKEN} characters")
    yield AddedToken(text, flags | ({"special": True} if special else {}))


_MARKS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>",
    "<turn|>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_utterance>",
)  # fmt: skip
"""Marks that people do not write, taken from llama.cpp."""
_TAGS: Final = ("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]")
_MESSAGE_FORMATS: Final = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}, {"<|call|>", "<|flush|>"})
"""In a vocabulary with all marks of one set, <|end|> ends a message but not the answer."""


def ending_ids(vocabulary: Mapping[str, int], marks: Container[int]) -> Iterable[int]:
    """Finds ids that end an answer. `marks` has the ids of tokens that are not text."""
    texts = [text for text in _MARKS if text in vocabulary]
    if any(marks_of_format <= set(texts) for marks_of_format in _MESSAGE_FORMATS):
        texts = [text for text in texts if text != "<|end|>"]
    is_html = {"</i>", "</u>"} <= vocabulary.keys()  # like Gemma's, where </s> ends struck text
    for text in _TAGS[1:] if is_html else _TAGS:
        # A text is a mark if the file says so, or if no merge of two pieces makes it.
        splits = ((text[:at], text[at:]) for at in range(1, len(text)))
        made = any(left in vocabulary and right in vocabulary for left, right in splits)
        if text in vocabulary and (vocabulary[text] in marks or not made):
            texts.append(text)
    return [vocabulary[text] for text in texts]
