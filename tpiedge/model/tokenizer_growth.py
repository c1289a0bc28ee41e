"""How much longer a text can become inside a tokenizer, told from its file before the library sees it.

A `tokenizer.json` is a stranger's program: normalizers that replace, prepend or decompose follow each other, and what
each makes of one byte is multiplied by the next. Twenty that double make a million of it. So the worst case of every
chain is computed from the JSON, with these laws, and a file whose chains exceed MAX_GROWTH is refused:

1. A step makes at most `factor * n + rest` bytes of a text of n bytes, and nothing of an empty one.
2. A step that works on every piece of a cut text may find each byte to be a piece: factor and rest add up.
3. A kind of step that is not listed here has no bound.
4. Nor has a model with a prefix for what continues a word: the library takes its length from every merge, in the middle
   of a character, too, and then never returns, or aborts the process.
"""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

from tpiedge.errors import UserError
from tpiedge.model.tokenizer_sections import sections
from tpiedge.sanitise import quote, sanitised_line

#: Of a byte. SentencePiece's usual chain (its table of replacements, runs of spaces, a mark per word) has 198, Llama's
#: 12, byte-level ones with NFC 12.
MAX_GROWTH = 256.0

_REPEATED = re.compile(r"([^\\^$.|?*+()\[\]{}])\{([1-9]\d{0,2}),\}", re.DOTALL)

Fields = Mapping[str, object]


@dataclass(frozen=True)
class _Growth:
    factor: float = 1.0
    rest: float = 0.0

    def then(self, other: "_Growth") -> "_Growth":
        return _Growth(self.factor * other.factor, self.rest * other.factor + other.rest)

    @property
    def of_a_byte(self) -> float:
        return self.factor + self.rest


class _Unbounded(Exception):
    """Says which step has no bound, or is none."""


def text_growth(data: bytes, where: str) -> float:
    """Of the tokenizer.json in `data`: how many tokens a byte of text can become at most. Raises UserError."""
    try:
        found = sections(data)
        _check_merges(found.get("model"))
        before = _bounded("normalizer", _chain(found.get("normalizer"), "normalizers", _NORMALIZERS))
        pieces = _bounded(
            "pre_tokenizer", _chain(found.get("pre_tokenizer"), "pretokenizers", _PRE_TOKENIZERS)
        )
        after = _bounded(
            "post_processor", _chain(found.get("post_processor"), "processors", _POST_PROCESSORS)
        )
        _bounded("decoder", _chain(found.get("decoder"), "decoders", _DECODERS))
        whole = _Growth(before.of_a_byte * pieces.of_a_byte * after.factor)
        return _bounded("normalizer and pre_tokenizer together", whole).factor
    except _Unbounded as error:
        raise UserError(f"{where}: {error}; get the model from a source you trust") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not a tokenizer that can be read ({sanitised_line(error, 120)}); download the model again"
        ) from None


def _bounded(field: str, growth: _Growth) -> _Growth:
    if not growth.of_a_byte <= MAX_GROWTH:
        raise _Unbounded(f"its {field} can make a text more than {MAX_GROWTH:g} times as long")
    return growth


def _check_merges(model: object) -> None:
    if isinstance(model, dict) and model.get("continuing_subword_prefix") not in (None, ""):
        raise _Unbounded("its model has a continuing_subword_prefix, which no model that runs here has")


def _chain(value: object, nested: str, known: Mapping[str, Callable[[Fields], _Growth]]) -> _Growth:
    """Of a step, or of a Sequence of them under the key `nested`."""
    if value is None:
        return _Growth()
    if not isinstance(value, dict):
        raise _Unbounded(f"{quote(value)} is no step of a tokenizer")
    kind = value.get("type")
    if kind == "Sequence":
        steps = value.get(nested)
        if not isinstance(steps, list):
            raise _Unbounded(f"a Sequence has no list of {nested}")
        return reduce(_Growth.then, (_chain(step, nested, known) for step in steps), _Growth())
    if not isinstance(kind, str) or kind not in known:
        raise _Unbounded(f"{quote(kind)} among its {nested} is not known here")
    return known[kind](value)


def _nbytes(fields: Fields, key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, str):
        raise _Unbounded(f"{key} of {quote(fields.get('type'))} is {quote(value)}, not a text")
    return len(value.encode("utf-8", "surrogatepass"))


# --- steps


def _same(_: Fields) -> _Growth:
    return _Growth()


def _times(factor: float) -> Callable[[Fields], _Growth]:
    return lambda _: _Growth(factor)


def _prepend(fields: Fields) -> _Growth:
    return _Growth(1.0, _nbytes(fields, "prepend"))


def _replace(fields: Fields) -> _Growth:
    pattern = fields.get("pattern")
    if not isinstance(pattern, dict) or len(pattern) != 1 or not set(pattern) <= {"String", "Regex"}:
        raise _Unbounded(f"the pattern of Replace is {quote(pattern)}")
    return _replaced(_least_match(pattern), _nbytes(fields, "content"))


def _replaced(found: int, by: int) -> _Growth:
    """At least `found` bytes become `by`; what may be empty is found before every byte, and at the end."""
    return _Growth(max(1.0, by / found)) if found else _Growth(1.0 + by, by)


def _least_match(pattern: Fields) -> int:
    """Bytes. Of regular expressions only "c{n,}" is understood; any other may match nothing."""
    if "String" in pattern:
        return _nbytes(pattern, "String")
    _nbytes(pattern, "Regex")
    repeated = _REPEATED.fullmatch(str(pattern["Regex"]))
    return len(repeated[1].encode("utf-8", "surrogatepass")) * int(repeated[2]) if repeated else 0


def _precompiled(fields: Fields) -> _Growth:
    """SentencePiece's table: the bytes of a trie, then the replacements, each ended by a zero."""
    _nbytes(fields, "precompiled_charsmap")
    table = base64.b64decode(str(fields["precompiled_charsmap"]), validate=True)
    replacements = table[4 + int.from_bytes(table[:4], "little") :]
    return _Growth(max(1.0, max(map(len, replacements.split(b"\0")))))


def _byte_level(fields: Fields) -> _Growth:
    """Bytes become characters of one or two."""
    return _Growth(2.0 if fields.get("add_prefix_space") is False else 4.0)


def _metaspace(fields: Fields) -> _Growth:
    mark = _nbytes(fields, "replacement")
    return _Growth(1.0 + mark)


def _template(fields: Fields) -> _Growth:
    """Tokens, not bytes: the text's, as often as the template has it, and those around it."""
    single, special = fields.get("single"), fields.get("special_tokens")
    if not isinstance(single, list) or not isinstance(special, dict | list):
        raise _Unbounded("a TemplateProcessing without template")
    listed = special.values() if isinstance(special, dict) else special
    longest = max(
        (len(one["ids"]) for one in listed if isinstance(one, dict) and isinstance(one.get("ids"), list)),
        default=0,
    )
    places = sum(not isinstance(piece, dict) or "SpecialToken" not in piece for piece in single)
    return _Growth(max(1, places), (len(single) - places) * longest)


def _joined_words(key: str) -> Callable[[Fields], _Growth]:
    return lambda fields: _replaced(_nbytes(fields, key), 1).then(_Growth(1.0, 1.0))


# The Unicode Standard's annex 15 says how much longer UTF-8 becomes by normalization.
_NORMALIZERS: Mapping[str, Callable[[Fields], _Growth]] = MappingProxyType(
    {
        "NFC": _times(3.0),
        "NFD": _times(3.0),
        "NFKC": _times(11.0),
        "NFKD": _times(11.0),
        "Lowercase": _times(1.5),
        "BertNormalizer": _times(7.5),  # NFD, lower case, and blanks around each ideograph
        "ByteLevel": _times(2.0),
        "Nmt": _same,
        "Strip": _same,
        "StripAccents": _same,
        "Prepend": _prepend,
        "Replace": _replace,
        "Precompiled": _precompiled,
    }
)
_PRE_TOKENIZERS: Mapping[str, Callable[[Fields], _Growth]] = MappingProxyType(
    {
        "ByteLevel": _byte_level,
        "Metaspace": _metaspace,
        "BertPreTokenizer": _same,
        "CharDelimiterSplit": _same,
        "Digits": _same,
        "FixedLength": _same,
        "Punctuation": _same,
        "Split": _same,
        "UnicodeScripts": _same,
        "Whitespace": _same,
        "WhitespaceSplit": _same,
    }
)
_POST_PROCESSORS: Mapping[str, Callable[[Fields], _Growth]] = MappingProxyType(
    {
        "TemplateProcessing": _template,
        "BertProcessing": lambda _: _Growth(1.0, 2.0),
        "RobertaProcessing": lambda _: _Growth(1.0, 2.0),
        "ByteLevel": _same,
    }
)
_DECODERS: Mapping[str, Callable[[Fields], _Growth]] = MappingProxyType(
    {
        "Replace": _replace,
        "ByteLevel": _times(3.0),  # a byte that is no character becomes U+FFFD
        "BPEDecoder": _joined_words("suffix"),
        "CTC": _joined_words("word_delimiter_token"),
        "WordPiece": lambda _: _Growth(1.0, 1.0),
        "ByteFallback": _times(3.0),
        "Fuse": _same,
        "Metaspace": _same,
        "Strip": _same,
    }
)
