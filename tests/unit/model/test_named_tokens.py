import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.model.vocabularies import KINDS, loaded
from tpiedge.errors import UserError
from tpiedge.model.named_tokens import ending_ids
from tpiedge.model.text_child import MAX_TOKEN
from tpiedge.model.tokenizer import Tokenizer

Files = Mapping[str, Mapping[str, Any]]

USUAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
NAMED = USUAL | {"eos_token": "<|im_end|>"}
TEXT = "<|im_start|>the fox<|im_end|> <tool> <|pad|>x<|image|>"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def described(text: str, **flags: bool) -> dict[str, object]:
    return {
        "content": text,
        **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
    } | flags


def usual(**more: object) -> dict[str, Any]:
    return {CONFIG: USUAL | more}


OWN = {str(i): described(text, special=True) for i, text in enumerate(("<unk>", "<s>", "</s>"))}
START_END = ["<|im_start|>", "<|im_end|>"]
IDS = {"<|im_start|>": 401, "<|im_end|>": 402}
BY_NUMBER = OWN | {"402": described("<|im_end|>"), "401": described("<|im_start|>", special=True)}
GAP = {"950": described("<|pad|>"), "700": described("<|im_start|>")}
END = described("<|im_end|>", rstrip=True) | {"__type": "AddedToken"}
PADDED = {"pad_token": described("<|pad|>"), "additional_special_tokens": START_END}
MORE = {"additional_special_tokens": START_END}
# The ids of the marks that the byte-level tokenizer, whose last own one is <tool> with 400, gets by these files.
CASES: dict[str, tuple[Files, dict[str, int]]] = {
    "by number": ({CONFIG: NAMED | {"added_tokens_decoder": BY_NUMBER}}, IDS),
    "a number with a gap says the order alone": (
        usual(added_tokens_decoder=GAP),
        {"<|im_start|>": 401, "<|pad|>": 402},
    ),
    "the older file": ({CONFIG: NAMED, ADDED: {"<|im_end|>": 402, "<|im_start|>": 401}}, IDS),
    "the older file without any other": ({ADDED: {"<|pad|>": 401}}, {"<|pad|>": 401}),
    "extra": (
        {CONFIG: NAMED | {"extra_special_tokens": START_END}},
        {"<|im_end|>": 401, "<|im_start|>": 402},
    ),
    "extra by name": (
        usual(extra_special_tokens={"image_token": "<|image|>", "video": "<|pad|>"}),
        {"<|image|>": 401, "<|pad|>": 402},
    ),
    "additional": (usual(**MORE), IDS),
    "additional beside extra": (usual(**MORE, extra_special_tokens=["<|pad|>"]), {"<|pad|>": 401}),
    "additional beside names": (
        usual(additional_special_tokens=["<|pad|>"], extra_special_tokens={"a": "<|image|>"}),
        {"<|image|>": 401, "<|pad|>": 402},
    ),
    "a name of its own": ({CONFIG: {"image_token": "<|image|>", **USUAL}}, {"<|image|>": 401}),
    "the map": (usual() | {MAP: PADDED}, {"<|pad|>": 401, "<|im_start|>": 402, "<|im_end|>": 403}),
    "the map beside the older file": ({CONFIG: NAMED, MAP: MORE, ADDED: IDS}, IDS),
    "a list beside the older file": (
        usual(**MORE) | {ADDED: {"<|im_start|>": 401, "<|pad|>": 402}},
        {"<|im_start|>": 401, "<|pad|>": 402, "<|im_end|>": 403},
    ),
    "the map overrules": (usual() | {MAP: {"eos_token": "<|im_end|>"}}, {"<|im_end|>": 401}),
    "the map beside numbers": (usual(added_tokens_decoder=OWN) | {MAP: MORE}, {}),
    "an object that says what it is": ({CONFIG: {"eos_token": END}}, {"<|im_end|>": 401}),
    "of the vocabulary": ({CONFIG: {"eos_token": "</s>", "pad_token": "h"}}, {}),
}


def written(folder: Path, files: Files, kind: str = "byte-level") -> Path:
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("case", list(CASES))
def test_added_token_ids_equal_transformers(tmp_path: Path, case: str, kind: str) -> None:
    from transformers import PreTrainedTokenizerFast

    files, ids = CASES[case]
    ours = Tokenizer.open(written(tmp_path, files, kind))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.encode(TEXT, add_special=False) == theirs.encode(TEXT, add_special_tokens=False)
    assert ours.special_ids == {i for i, one in theirs.added_tokens_decoder.items() if one.special}
    assert len(ours.vocabulary) == len(theirs)
    if kind == "byte-level":
        assert {text: ours.token_id(text) for text in ids} == ids
        assert len(ours.vocabulary) == 401 + len(ids)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {CONFIG: {"added_tokens_decoder": {"x": described("a")}}},
            "added_tokens_decoder: 'x' is not a token's number",
        ),
        ({CONFIG: {"added_tokens_decoder": {"4": "a"}}}, "added_tokens_decoder: '4' is not a token's number"),
        ({CONFIG: {"added_tokens_decoder": ["a"]}}, "added_tokens_decoder is"),
        ({CONFIG: {"extra_special_tokens": [3]}}, "extra_special_tokens is 3, not a token's text"),
        ({CONFIG: {"extra_special_tokens": ["a" * (MAX_TOKEN + 1)]}}, "extra_special_tokens is"),
        ({ADDED: {"a": "b"}}, r"added_tokens\.json: a is 'b', not a whole number"),
        ({ADDED: {"a\ud800": 401}}, r"added_tokens\.json: .* is .*, not a token's text"),
        ({CONFIG: {"extra_special_tokens": [f"<{i}>" for i in range(100_001)]}}, "more than 100000 tokens"),
    ],
)
def test_invalid_added_tokens_are_refused(tmp_path: Path, files: Files, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        Tokenizer.open(written(tmp_path, files))
    assert str(raised.value).isprintable()


ENDS: list[tuple[list[str], list[int], list[str]]] = [
    # the vocabulary, its marks, and what ends an answer
    (["a", "<|im_start|>", "<|im_end|>", "<|endoftext|>"], [], ["<|im_end|>", "<|endoftext|>"]),
    (
        ["<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|python_tag|>"],
        [],
        ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    ),
    (["<s>", "</s>", "[INST]"], [0, 1], ["</s>"]),
    (["<|assistant|>", "<|end|>"], [], ["<|end|>"]),
    # Messages of one answer end with <|end|>, too, where others end the answer.
    (["<|end|>", "<|return|>", "<|call|>"], [0, 1, 2], ["<|return|>", "<|call|>"]),
    (["<|end|>", "<|calls|>", "<|flush|>"], [0, 1, 2], ["<|calls|>", "<|flush|>"]),
    # HTML that a model writes is made of pieces.
    (["</", "s>", "</s>"], [], []),
    (["</", "s>", "</s>"], [2], ["</s>"]),
    (["<", "/", "s", ">", "</s>"], [], ["</s>"]),
    (["</i>", "</s>", "</u>", "<eos>"], [0, 1, 2, 3], ["<eos>"]),
    (
        ["<|tool_call|>", "<think>", "</think>", "<tool_response>", "<|fim_pad|>", "<|file_sep|>"],
        [0, 1, 2, 3],
        [],
    ),
]


@pytest.mark.parametrize(("texts", "marks", "ends"), ENDS)
def test_end_tokens_are_recognised_by_text(texts: list[str], marks: list[int], ends: list[str]) -> None:
    vocabulary = {text: index for index, text in enumerate(texts)}
    assert {texts[index] for index in ending_ids(vocabulary, marks)} == set(ends)


def test_eos_token_of_tokenizer_is_first_end_id() -> None:
    backend = KINDS["byte-level"]()
    backend.add_special_tokens(["<|im_end|>", "<|finish|>"])
    assert Tokenizer(loaded(backend), {"eos_token": "<|finish|>"}).end_ids == (402, 401, 2)
    assert Tokenizer(loaded(KINDS["byte-level"]()), {}).end_ids == (2,)
