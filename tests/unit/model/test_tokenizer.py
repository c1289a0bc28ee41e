import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.model.vocabularies import KINDS, TOKENIZERS
from tpiedge.errors import UserError
from tpiedge.model import text_process
from tpiedge.model.tokenizer import Detokenizer, TextWriter, Tokenizer, TooManyTokens, unfinished

BACKENDS = {kind: build() for kind, build in KINDS.items()}


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def save(folder: Path, kind: str = "byte-fallback", **config: object) -> Path:
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class TestTokenizer:
    def test_ids_equal_transformers(self, tmp_path: Path) -> None:
        from transformers import PreTrainedTokenizerFast

        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        ours = Tokenizer.open(save(tmp_path, **tokens))
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **tokens)
        for text in ("", "hello world", "  two  spaces ", "你好 😀", "a\nb\t", "<s>x</s>"):
            assert ours.encode(text) == theirs.encode(text)
            assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False)

    def test_special_tokens_are_known(self, tmp_path: Path) -> None:
        config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
        tokenizer = Tokenizer.open(save(tmp_path, "byte-level", **config))
        assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
        assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
        assert tokenizer.special_ids == {0, 1, 2}
        assert set(tokenizer.vocabulary.values()) == set(range(401))

    @pytest.mark.parametrize(
        ("kind", "flags", "around"),
        [
            ("byte-level", {}, ([], [])),
            ("byte-level", {"add_bos_token": True}, ([1], [])),
            ("byte-level", {"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
            ("byte-fallback", {}, ([1], [])),
            ("byte-fallback", {"add_bos_token": False}, ([], [])),
            ("byte-fallback", {"add_bos_token": True}, ([1], [])),
        ],
    )
    def test_bos_and_eos_flags_override_tokenizer_file(
        self, tmp_path: Path, kind: str, flags: dict[str, bool], around: tuple[list[int], list[int]]
    ) -> None:
        from transformers import PreTrainedTokenizerFast

        tokenizer = Tokenizer.open(save(tmp_path, kind, bos_token="<s>", eos_token="</s>", **flags))
        inner = tokenizer.encode("hello", add_special=False)
        assert tokenizer.encode("hello") == around[0] + inner + around[1]
        theirs = PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>", **flags
        )
        assert tokenizer.encode("hello") == theirs.encode("hello")

    @pytest.mark.parametrize("text", ["<s>x</s>", "a <tool> b", "the fox</s>\n"])
    def test_special_tokens_can_be_encoded_as_text(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert not tokenizer.special_ids & set(ids)
        assert tokenizer.decode(ids).lstrip() == text
        tool = tokenizer.token_id("<tool>")  # an added token that is not special stays one
        assert (tool in ids) == (tool is not None and "<tool>" in text)
        assert tokenizer.encode("the fox", parse_special=False) == tokenizer.encode("the fox")

    @pytest.mark.parametrize("half", [0xD800, 0xDCE9], ids=["half a pair", "byte of a command line"])
    def test_non_unicode_text_is_refused(self, tokenizer: Tokenizer, half: int) -> None:
        with pytest.raises(UserError, match=rf"the text has '\\u{half:x}', .* send it as UTF-8"):
            tokenizer.encode(f"a{chr(half)}")

    BROKEN = ('{"model": {"type": "BPE"}}', '{"version": "1.0", "model": null}', '{"a":' * 5000)

    @pytest.mark.parametrize("text", ["", "{}", "[]", "\0", *BROKEN])
    def test_broken_files_are_refused_in_one_line(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer") as raised:
            Tokenizer.open(tmp_path)
        assert str(raised.value).isprintable()

    @pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
    def test_older_formats_get_advice(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x0a\x0e")
        with pytest.raises(UserError, match="save_pretrained"):
            Tokenizer.open(tmp_path)


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, shown=frozenset() if skip_special else tokenizer.special_ids)
    found = [detokenizer.push(token_id) for token_id in ids]
    return [*found, detokenizer.finish()]


def library_text(kind: str, ids: list[int]) -> str:
    """Returns the library's text of ids that are in the vocabulary."""
    return str(BACKENDS[kind].decode(ids, skip_special_tokens=False))


class TestDetokenizer:
    @pytest.mark.parametrize("kind", list(TOKENIZERS))
    @settings(max_examples=100)
    @given(data=st.data())
    def test_detokenizer_streams_same_text_as_library(self, kind: str, data: st.DataObject) -> None:
        """Random ids: broken UTF-8, special tokens inside of byte runs, ids beyond the vocabulary."""
        tokenizer = TOKENIZERS[kind]
        byte = st.integers(3, 258)
        ids = data.draw(st.lists(st.integers(0, len(tokenizer.vocabulary) + 2) | byte, max_size=30))
        skip = data.draw(st.booleans())
        skipped = tokenizer.special_ids if skip else ()
        whole = library_text(
            kind, [one for one in ids if one < len(tokenizer.vocabulary) and one not in skipped]
        )
        found = "".join(pieces(tokenizer, ids, skip_special=skip))
        # Of a broken run of bytes the library shows no character, SentencePiece's bytes one by one.
        assert found == whole or (kind != "byte-level" and "\ufffd" in whole and "\ufffd" in found)

    @pytest.mark.parametrize("kind", list(TOKENIZERS))
    @settings(max_examples=100)
    @given(data=st.data())
    def test_detokenizer_resumes_after_given_ids(self, kind: str, data: st.DataObject) -> None:
        """Random ids, cut anywhere, even within characters."""
        tokenizer = TOKENIZERS[kind]
        word = st.sampled_from(
            [*map(tokenizer.encode, ("the fox", " ", "你好", "\ufffd")), [0], [2], [300], [499]]
        )
        ids = [token for part in data.draw(st.lists(word, max_size=40)) for token in part]
        cut = data.draw(st.integers(0, len(ids)))
        before = [
            one for one in ids[:cut] if one < len(tokenizer.vocabulary) and one not in tokenizer.special_ids
        ]
        begun = len(before) - unfinished(tokenizer, before)
        shown, whole = tokenizer.decode(before[:begun]), tokenizer.decode(ids)
        detokenizer = Detokenizer(tokenizer, after=ids[:cut])
        rest = [*map(detokenizer.push, ids[cut:]), detokenizer.finish()]
        assert shown + "".join(rest) == whole

    @pytest.mark.parametrize("kind", list(TOKENIZERS))
    @settings(max_examples=50)
    @given(text=st.text(max_size=30))
    @pytest.mark.fault("H11", "characters come whole")
    def test_any_text_streams_in_whole_characters(self, kind: str, text: str) -> None:
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode(text, add_special=False)
        whole = tokenizer.decode(ids)
        shown = ""
        for piece in pieces(tokenizer, ids):
            shown += piece
            assert whole.startswith(shown)
        assert shown == whole


HOSTILE = {
    "a prefix by which merges are cut": ({"model": {"continuing_subword_prefix": " "}}, "."),
    "a decoder that joins words": (
        {"decoder": {"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": True}},
        "joins tokens in a way that is not known",
    ),
    "a decoder without measure": (
        {"decoder": {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10_000}},
        "a long text of one token",
    ),
    "a token without measure": ({"model": {"vocab": {"x" * 2000: 999}}}, "a token of 2000 characters"),
    "a number without measure": ({"model": {"vocab": {"xyz": 1 << 30}}}, "not below|time or memory"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_tokenizer_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    changes, named = HOSTILE[case]
    content = json.loads(KINDS["byte-level"]().to_str())
    model = content["model"]
    vocabulary = model["vocab"] | changes.get("model", {}).get("vocab", {})
    content |= {**changes, "model": {**model, **changes.get("model", {}), "vocab": vocabulary}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=named) as raised:
        Tokenizer.open(tmp_path)
    assert str(raised.value).isprintable()


BOMB = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 20}] * 8,
}


def test_normalizer_bomb_ends_only_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text_process._CPU_S, b"E", 2)
    content = json.loads(KINDS["byte-level"]().to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"normalizer": BOMB}))
    tokenizer = Tokenizer.open(tmp_path)
    with pytest.raises(UserError, match="the model's tokenizer took too much time or memory"):
        tokenizer.encode("the sea")
    assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"


def test_encoding_stops_beyond_token_limit(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path))
    with pytest.raises(TooManyTokens) as raised:
        tokenizer.encode("the sea " * 100_000, most=100)
    assert 100 < raised.value.tokens < 2100
    exact = len(tokenizer.encode("the sea " * 10_000))
    assert exact <= tokenizer.count("the sea " * 10_000) < exact + 10  # pieces begin with a space each


def test_tokenizers_folder_comes_first_on_child_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of another package may hold a second version: that of tokenizers comes first."""
    monkeypatch.setattr(
        text_process, "find_spec", lambda name: SimpleNamespace(origin=f"/{name}/{name}/__init__.py")
    )
    assert text_process._folders()[0] == "/tokenizers"


TOKENIZER = TOKENIZERS["byte-level"]


def run(stops: Sequence[str], pieces: list[str]) -> tuple[str, str]:
    """(the text, the stop string)"""
    writer, shown = TextWriter(TOKENIZER, stops), ""
    for token in [token for piece in pieces for token in TOKENIZER.encode(piece, add_special=False)]:
        text, stopped = writer.push(token)
        shown += text
        if stopped:
            return shown, writer.stop
    return shown + writer.finish()[0], writer.stop


def cut_by_character(stops: list[str], text: str) -> str:
    """The definition: read characters until the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


LETTERS = st.text("ab", max_size=12)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), pieces=st.lists(LETTERS, max_size=6)
)
@pytest.mark.fault("H11", "no part of a stop string is shown")
def test_stop_string_cut_equals_reference(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    shown, stop = run(stops, pieces)
    assert shown == cut_by_character(stops, text)
    assert text.startswith(shown + stop)
    assert bool(stop) == any(stop in text for stop in stops)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [((), "one 😀 two"), (("😀",), "one "), (("two three",), "one 😀 two"), (("wo", "two"), "one 😀 ")],
)
def test_text_ends_before_its_stop_string(stops: tuple[str, ...], expected: str) -> None:
    text, stop = run(stops, ["one 😀 two"])
    assert (text, bool(stop)) == (expected, expected in ("one ", "one 😀 "))
