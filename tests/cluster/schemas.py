"""JSON schemas at random, of which every answer has an end: strings and arrays are bounded, and nothing recurs."""

from hypothesis import strategies as st

Schema = dict[str, object]

_NAMES = st.text("abcdefgh_ é", min_size=1, max_size=6)


def schemas() -> st.SearchStrategy[Schema]:
    return st.recursive(
        _leaves(), lambda inner: st.one_of(_objects(inner), _arrays(inner), _unions(inner)), max_leaves=8
    )


def _leaves() -> st.SearchStrategy[Schema]:
    return st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(_integer, st.integers(-1000, 1000), st.integers(0, 500)),
        st.builds(_number, st.integers(-100, 100), st.integers(1, 50)),
        st.builds(_string, st.integers(0, 4), st.integers(0, 8)),
        st.builds(lambda pattern: {"type": "string", "pattern": pattern}, st.sampled_from(_PATTERNS)),
        st.builds(lambda values: {"enum": values}, st.lists(_constants(), min_size=1, max_size=5)),
        st.builds(lambda value: {"const": value}, _constants()),
    )


_PATTERNS = ("^[a-z]{1,5}$", "^(yes|no|maybe)$", "^[A-Z][a-z]{0,3}-[0-9]{2}$", "^x?y{2,3}$")


def _constants() -> st.SearchStrategy[object]:
    return st.one_of(
        st.integers(-99, 99), st.booleans(), st.none(), st.text(max_size=6, alphabet='ab"\\ é\n')
    )


def _integer(low: int, more: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": low + more}


def _number(low: int, more: int) -> Schema:
    return {"type": "number", "minimum": low, "maximum": low + more, "multipleOf": 0.25}


def _string(low: int, more: int) -> Schema:
    return {"type": "string", "minLength": low, "maxLength": low + more}


def _objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def built(properties: dict[str, Schema], needed: list[bool]) -> Schema:
        required = [name for name, need in zip(properties, needed, strict=False) if need]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    return st.builds(
        built, st.dictionaries(_NAMES, inner, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4)
    )


def _arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def built(items: Schema, low: int, more: int) -> Schema:
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + more}

    return st.builds(built, inner, st.integers(0, 2), st.integers(0, 2))


def _unions(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3))
