import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpiedge.api.grammar_schema import GrammarSchema, SchemaTooLarge, is_held

NUMBER, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}


def of(*required: str, **properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": [*required]} if required else {})


def fits(schema: object, value: object) -> bool:
    """Whether a grammar of the schema allows the value, written as Python does."""
    llguidance = pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    spaces = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=spaces)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = [*json.dumps(value).encode()]
    if matcher.validate_tokens(data) < len(data):
        return False
    matcher.consume_tokens(data)
    return bool(matcher.is_accepting())


A, B = of("a", a=NUMBER), of("b", b=TEXT)
AB, EVIL = {"a": 1, "b": "x"}, {"evil": 1}
DEFINED = {"$defs": {"A": A, "B": B}}
REFERRED = [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]
#: What it is, the schema, what is of it, and what is not.
CLOSED: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("nested", of(a=of(b=NUMBER)), [{"a": {"b": 1}}, {}], [{"a": {"c": 1}}, {"c": 1}]),
    ("in a list", {"type": "array", "items": of(b=NUMBER)}, [[{"b": 1}]], [[{"c": 1}]]),
    ("open by its word", of(a=NUMBER) | {"additionalProperties": True}, [{"a": 1, "z": 2}], [{"a": "x"}]),
    ("others of a type", of(a=NUMBER) | {"additionalProperties": TEXT}, [{"z": "q"}], [{"z": 1}]),
    ("undeclared", of("a", "b", a=NUMBER), [{"a": 1, "b": 3}], [{"a": 1}, {"a": 1, "b": 1, "c": 1}]),
    ("definitions", of(x={"$ref": "#/$defs/A"}) | DEFINED, [{"x": {"a": 1}}], [{"x": {"a": 1, "z": 1}}]),
    ("both by reference", {"allOf": REFERRED} | DEFINED, [{"a": 1, "b": "x"}], [{"a": 1}, {"a": 1, "b": 1}]),
    ("unevaluated", {"allOf": [A, B], "unevaluatedProperties": False}, [AB], [AB | EVIL]),
    ("a part beside properties", of(k=NUMBER) | {"allOf": [A]}, [{"k": 1, "a": 1}], [{"a": 1} | EVIL]),
    ("a part that needs", of(a=NUMBER) | {"allOf": [{"required": ["b"]}]}, [{"b": 1}], [{"b": 1} | EVIL]),
    ("a choice in a part", {"allOf": [of(k=NUMBER), {"anyOf": [A, B]}]}, [{"a": 1}], [{"a": 1} | EVIL]),
    ("a part in a choice", {"anyOf": [{"allOf": [A, B]}, NULL]}, [AB, None], [AB | EVIL]),
    ("open by a part", {"allOf": [B, A | {"additionalProperties": True}]}, [{"b": "x", "a": 1} | EVIL], [{}]),
    (
        "beside a reference",
        {**REFERRED[0], "properties": {"b": TEXT}, **DEFINED},
        [{"b": "x", "a": 1}],
        [{"b": "x"}, {"a": 1, "b": 1}, {"a": 1, "z": 1}],
    ),
    (
        "a choice",
        {"anyOf": [A, B, NULL]},
        [{"a": 1}, {"b": "x"}, None],
        [{"a": 1, "b": "x"}, {"a": 1, "z": 1}, 5],
    ),
    (
        "a choice beside properties",
        of(k=NUMBER) | {"anyOf": REFERRED} | DEFINED,
        [{"k": 1, "a": 1}, {"k": 1, "b": "x"}],
        [{"k": 1}, {"k": 1, "b": 1}, {"k": 1, "a": 1, "b": "x"}, {"k": 1, "a": 1, "z": 1}],
    ),
    (
        "a choice of what is needed",
        of(a=NUMBER, b=NUMBER) | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "z": 1}],
    ),
    ("one of two", {"oneOf": [A, B]}, [{"a": 1}, {"b": "x"}], [{"a": 1, "b": "x"}, {"z": 1}]),
    ("names by a pattern", {"type": "object", "patternProperties": {"^a": NUMBER}}, [{"ab": 1}], [{"b": 1}]),
    ("none at all", {"type": "object", "unevaluatedProperties": False}, [{}], [{"z": 1}]),
    (
        "a tree by reference",
        {"$ref": "#/$defs/N", "$defs": {"N": of(next={"anyOf": [{"$ref": "#/$defs/N"}, NULL]})}},
        [{"next": {"next": None}}],
        [{"next": {"z": 1}}, {"z": 1}],
    ),
    (
        "names like words",
        of(**{"$ref": TEXT, "enum": NUMBER, "properties": of(q=NUMBER)}),
        [{"$ref": "x", "enum": 1, "properties": {"q": 1}}],
        [{"properties": {"z": 1}}],
    ),
    (
        "a tuple",
        {"prefixItems": [NUMBER, TEXT], "type": "array", "unevaluatedItems": False},
        [[1, "x"]],
        [[1, "x", 3]],
    ),
    ("never", {"anyOf": [{"not": {}}, NUMBER]}, [1], ["x"]),
    ("capitals", of(a=NUMBER) | {"type": "OBJECT"}, [{"a": 1}], [{"z": 1}, {"a": 1, "z": 1}]),
    ("words of null", of(a=NUMBER) | {"required": None, "enum": None}, [{}, {"a": 1}], [{"z": 1}]),
    ("a constant of null", of(a={"const": None}), [{"a": None}], [{"a": 1}]),
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [case[1:] for case in CLOSED], ids=[case[0] for case in CLOSED]
)
def test_undeclared_properties_are_refused_unless_allowed(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    held = GrammarSchema(schema)
    assert not held.left_out
    assert [value for value in good if not fits(held.schema, value)] == []
    assert [value for value in bad if fits(held.schema, value)] == []


OWN = "#/$defs/own"
#: Where `a` is an integer and `b` a text.
REFERRING: list[dict[str, Any]] = [
    of(a={"$ref": "#/$defs/x~1y%20z"}, b={"$ref": "#/properties/c/items/1"}, c={"items": [NUMBER, TEXT]})
    | {"$defs": {"x/y z": NUMBER}},
    of(a={"$ref": "#/$defs/i"}, b={"$ref": "#/$defs/t"})
    | {"$id": "https://example.org/whole", "$defs": {"i": NUMBER, "t": TEXT}},
    of(a={"$recursiveRef": OWN}, b={"$id": "https://b.org", "$dynamicRef": OWN, "$defs": {"own": TEXT}})
    | {"$defs": {"own": NUMBER}},
]


@pytest.mark.parametrize("schema", REFERRING)
def test_references_are_rewritten_to_prefixed_definitions(schema: dict[str, Any]) -> None:
    held = GrammarSchema(schema, "mine-")
    assert not held.left_out
    assert fits(held.schema, {"a": 1, "b": "x"})
    assert not fits(held.schema, {"a": "x"})
    assert not fits(held.schema, {"b": 1})
    references = json.dumps(held.schema).count('"$ref"')
    assert references == json.dumps(held.schema).count('"$ref": "#/$defs/mine-')


@pytest.mark.parametrize(
    ("schema", "left_out"),
    [
        (of(f={"type": "array", "uniqueItems": True}), ["properties.f.uniqueItems"]),
        (of(f={"type": "array", "uniqueItems": False}), []),
        (
            of(f={"$ref": "#/$defs/S"}) | {"$defs": {"S": {"type": "array", "uniqueItems": True}}},
            ["$defs.S.uniqueItems"],
        ),
        ({"type": "array", "items": {"type": "array", "contains": TEXT}}, ["items.contains"]),
        (of(f=TEXT | {"pattern": r"^(?!a)b"}), ["properties.f.pattern"]),
        (of(f=TEXT | {"format": "path"}), []),
        (of(f=TEXT | {"format": "binary", "contentEncoding": "base64", "writeOnly": True, "x-more": 1}), []),
        (of(f={"type": "any"}), ["properties.f.type"]),
        (of(f={"type": "STRING"}), []),
        (of(f={"not": TEXT}), ["properties.f.not"]),
        (of(a=NUMBER) | {"if": {"required": ["a"]}, "then": of(b=TEXT)}, ["if"]),
        (of(a=NUMBER) | {"dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
        (of(a=NUMBER) | {"patternProperties": {"^(?=b)": TEXT}}, ["patternProperties"]),
        (of(f={"$ref": "#/$defs/nowhere"}), ["properties.f.$ref"]),
        (of(f={"$ref": "https://example.org/x"}), ["properties.f.$ref"]),
        (of(f={"$ref": "#anchor"}) | {"$defs": {"x": {"$anchor": "anchor"}}}, ["properties.f.$ref"]),
        ({"oneOf": [of(a=NUMBER), of(b=TEXT)]}, []),
        ({"type": "object", "propertyNames": {"enum": ["a"]}}, ["propertyNames"]),
        ({"$dynamicRef": "#m", "$defs": {"q": TEXT | {"$dynamicAnchor": "m"}}}, ["$dynamicRef"]),
        ({"$recursiveRef": "#/$defs/A", "$ref": "#/$defs/B"} | DEFINED, ["$recursiveRef"]),
        ({"type": "array", "contains": {}}, ["contains"]),
        ({"if": {}, "then": NUMBER}, ["if"]),
        (TEXT | {"pattern": 5}, ["pattern"]),
        ({"allOf": [A | {"unevaluatedProperties": False}, B]}, ["allOf[0].unevaluatedProperties"]),
        (of(f={"const": 1 << 53}, g={"enum": ["a", None, 1.5, 10**300]}), ["properties.g.enum"]),
        (of(f=NUMBER | {"const": (1 << 53) + 1}), ["properties.f.const"]),
        (of(f={"enum": [{"id": [175928847299117063]}]}), ["properties.f.enum"]),
    ],
)
def test_unsupported_keywords_are_left_out_and_named(schema: dict[str, Any], left_out: list[str]) -> None:
    held = GrammarSchema(schema)
    assert list(held.left_out) == left_out
    fits(held.schema, 1)


@pytest.mark.parametrize("part", [{"if": A, "then": B}, {"if": A, "else": B}, {"dependentSchemas": {"a": B}}])
def test_conditional_subschemas_declare_properties(part: dict[str, Any]) -> None:
    held = GrammarSchema(of(a=NUMBER) | part).schema
    assert fits(held, AB)
    assert not fits(held, AB | EVIL)


def test_paths_with_long_names_are_shortened() -> None:
    parts = [{"type": "array", "uniqueItems": True}] * 3
    left_out = GrammarSchema(of(**{"n" * 10_000: {"prefixItems": parts}})).left_out
    assert [place.rpartition(".prefix")[2] for place in left_out] == [
        f"Items[{at}].uniqueItems" for at in range(3)
    ]
    assert max(map(len, left_out)) < 400


@pytest.mark.parametrize("required", [{}, {"required": None}, {"required": []}])
def test_discriminator_tag_is_required_despite_its_default(required: dict[str, object]) -> None:
    """Pydantic writes unions with a discriminator so, and does not require their tags."""
    kinds = [of("n", k={"const": kind, "default": kind}, n=NUMBER) for kind in "ab"]
    schema = of(x={"oneOf": kinds, "discriminator": {"propertyName": "k", "mapping": {}}, **required})
    held = GrammarSchema(schema).schema
    assert fits(held, {"x": {"k": "b", "n": 1}})
    assert not fits(held, {"x": {"n": 1}})


EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
UUID = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
    "00000000-0000-0000-0000-000000000000)$"
)
DATE = (
    r"^((\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|"
    r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|"
    r"(02)-(0[1-9]|1\d|2[0-8])))$"
)
BASE64 = "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"
#: As pydantic and zod write what programmers use.
ORDINARY: list[tuple[dict[str, Any], Any]] = [
    (TEXT | {"format": "password", "writeOnly": True}, "secret"),
    (TEXT | {"format": "base64url"}, "YQ=="),
    (TEXT | {"contentMediaType": "application/json", "contentSchema": {}}, "{}"),
    (TEXT | {"format": "uri", "minLength": 1, "maxLength": 2083}, "https://example.org/a?b=c"),
    (TEXT | {"format": "duration"}, "P1DT2H"),
    (TEXT | {"format": "email", "pattern": EMAIL}, "a.b@example.org"),
    (TEXT | {"format": "uuid", "pattern": UUID}, "00000000-0000-0000-0000-000000000000"),
    (TEXT | {"format": "date", "pattern": DATE}, "2024-02-29"),
    (TEXT | {"contentEncoding": "base64", "format": "base64", "pattern": BASE64}, "YWI="),
    (TEXT | {"format": "e164", "pattern": r"^\+[1-9]\d{6,14}$"}, "+4912345678"),
    ({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}, 3),
    ({"type": "object", "propertyNames": TEXT, "additionalProperties": {}}, {"a": None}),
    ({"type": "array", "items": {"enum": ["a", "b"], "type": "string"}, "uniqueItems": True}, ["a"]),
    ({"anyOf": [{"type": "number"}, TEXT | {"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}, "1.5"),
    ({"anyOf": [TEXT | {"format": "date-time"}, NULL], "default": None}, "2024-05-06T07:08:09Z"),
]


@pytest.mark.parametrize(("schema", "value"), ORDINARY)
def test_ordinary_types_are_supported(schema: dict[str, Any], value: Any) -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    held = GrammarSchema(of("f", f=schema) | draft)
    assert fits(held.schema, {"f": value})


INT64 = 1 << 63


@pytest.mark.parametrize(
    ("bounds", "allowed", "refused"),
    [
        ({"minimum": -INT64, "maximum": INT64 - 1}, [0, -INT64 + 1024, INT64 - 1024], [-INT64, INT64]),
        ({"maximum": (1 << 53) + 3}, [(1 << 53) + 2], [(1 << 53) + 4]),
        ({"minimum": (1 << 53) + 1}, [(1 << 53) + 2], [1 << 53]),
        ({"exclusiveMinimum": -(1 << 53) - 3}, [-(1 << 53)], [-(1 << 53) - 3, -(1 << 53) - 4]),
        ({"minimum": 0, "maximum": (1 << 64) - 1}, [0, 7], [-1, 1 << 64]),
    ],
)
def test_bounds_beyond_double_precision_are_never_exceeded(
    bounds: dict[str, Any], allowed: list[int], refused: list[int]
) -> None:
    held = GrammarSchema(NUMBER | bounds)
    assert not held.left_out
    assert all(fits(held.schema, value) for value in allowed)
    assert not any(fits(held.schema, value) for value in refused)


@pytest.mark.parametrize("bound", [{"minimum": 1 << 70}, {"maximum": -1 << 70}])
def test_bounds_outside_int64_are_kept_unchanged(bound: dict[str, int]) -> None:
    assert GrammarSchema(NUMBER | bound).schema == NUMBER | bound


HELD = [
    "^a|^b$", "(a$|b)", r"^\p{L}+$", "[^a-z]", r"[\]\[]", "(?P<n>a)", "a{2,}", r"\/\-\@", "[]a]", "^[[:alpha:]]$",
]  # fmt: skip
#: To look for the end of the last one's name takes long.
UNHELD = [
    "(?=a)", "(?!a)b", "(?<=a)", r"(a)\1", r"\bw\b", "a^b", "a$b", "[^]", r"\Z", r"\cA", "(?>a)", "(?#x)", "^{a}$",
    "a{,3}", "(?m)^a", "[[]", rf"\p{{{'L' * 70}}}",
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "held"), [*((one, True) for one in HELD), *((one, False) for one in UNHELD)]
)
def test_supported_patterns_are_recognised(pattern: str, held: bool) -> None:
    assert is_held(pattern) == held
    if held:
        fits({"type": "string", "pattern": pattern}, "x")


def test_a_schema_of_too_many_parts_is_refused() -> None:
    with pytest.raises(SchemaTooLarge, match="give a smaller schema"):
        GrammarSchema({"anyOf": [of(a=NUMBER)] * 11_000})


WORDS = [
    "type", "properties", "patternProperties", "additionalProperties", "required", "items", "prefixItems", "allOf",
    "anyOf", "oneOf", "not", "if", "then", "$ref", "$id", "$dynamicRef", "$defs", "enum", "const", "propertyNames",
    "unevaluatedProperties", "dependentSchemas", "discriminator", "pattern", "format", "uniqueItems", "propertyName",
]  # fmt: skip
VALUES = st.sampled_from(
    [None, True, False, 1, "a", "object", "#", "#/$defs/a", "#a", "^a", "(?=a)", "https://[x"]
)
ANYTHING = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WORDS, "a", "b"]), inner, max_size=5)
    ),
    max_leaves=25,
)


@example({"additionalProperties": [{"$ref": "#/$defs/a"}]})
@given(st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=6))
def test_any_object_makes_a_schema_or_is_too_large(schema: dict[str, Any]) -> None:
    try:
        held = GrammarSchema(schema)
    except SchemaTooLarge:
        return
    names = set(held.schema.get("$defs", {}))
    for reference in _references(held.schema):
        assert reference.removeprefix("#/$defs/") in names


def _references(schema: object) -> list[str]:
    if isinstance(schema, list):
        return [one for part in schema for one in _references(part)]
    if not isinstance(schema, dict):
        return []
    named_words = ("$defs", "properties", "patternProperties")
    reference = schema.get("$ref")
    own = [reference] if isinstance(reference, str) and reference.startswith("#/$defs/") else []
    inner = [value for key, value in schema.items() if key not in ("const", "enum", "required", *named_words)]
    named = [schema[key] for key in named_words if isinstance(schema.get(key), dict)]
    parts = [*inner, *(part for several in named for part in several.values())]
    return own + [one for part in parts for one in _references(part)]
