"""Tokenizer and detokenizer over both kinds of vocabulary: byte-level, and Llama 2's with byte fallback."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tests.unit.model.vocabularies import CORPUS, KINDS, TOKENIZERS, byte_level
from tpiedge.errors import UserError
from tpiedge.model.text_child import LoadedTokenizer
from tpiedge.model.tokenizer import Detokenizer, Tokenizer, TooManyTokens, unfinished

BACKENDS = {kind: build() for kind, build in KINDS.items()}


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def save(folder: Path, kind: str = "byte-fallback", **config: object) -> Path:
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class TestTokenizer:
    @pytest.mark.parametrize("text", ["", "hello world", "  two  spaces ", "你好 😀", "a\nb\t", "<s>x</s>"])
    def test_ids_equal_transformers(self, tmp_path: Path, text: str) -> None:

        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        ours = Tokenizer.open(save(tmp_path, **tokens))
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **tokens)
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False)

    def test_round_trip(self, tokenizer: Tokenizer) -> None:
        text = "Once upon a time 你好 😀!"
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_special_tokens_are_known(self, tmp_path: Path) -> None:
        config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
        tokenizer = Tokenizer.open(save(tmp_path, "byte-level", **config))
        assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
        assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
        assert tokenizer.special_ids == {0, 1, 2}
        assert tokenizer.vocab_size == 401
        assert tokenizer.token(401) is None

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
    def test_flags_overrule_the_file(
        self, tmp_path: Path, kind: str, flags: dict[str, bool], around: tuple[list[int], list[int]]
    ) -> None:

        tokenizer = Tokenizer.open(save(tmp_path, kind, bos_token="<s>", eos_token="</s>", **flags))
        inner = tokenizer.encode("hello", add_special=False)
        assert tokenizer.encode("hello") == around[0] + inner + around[1]
        theirs = PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>", **flags
        )
        assert tokenizer.encode("hello") == theirs.encode("hello")

    @pytest.mark.parametrize("text", ["<s>x</s>", "a <tool> b", "the fox</s>\n"])
    def test_special_tokens_may_be_text(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert not tokenizer.special_ids & set(ids)
        assert tokenizer.decode(ids).lstrip() == text
        tool = tokenizer.token_id("<tool>")  # an added token that is not special stays one
        assert (tool in ids) == (tool is not None and "<tool>" in text)
        assert tokenizer.encode("the fox", parse_special=False) == tokenizer.encode("the fox")

    def test_truncation_in_the_file_is_ignored(self, tmp_path: Path) -> None:
        backend = byte_level()
        backend.enable_truncation(3)
        backend.enable_padding(length=50)
        backend.save(str(tmp_path / "tokenizer.json"))
        ids = Tokenizer.open(tmp_path).encode("The quick brown fox jumps")
        assert 3 < len(ids) < 50

    def test_a_tokenizer_without_tokens_for_the_text_is_said_in_one_line(self) -> None:
        tokenizer = Tokenizer(LoadedTokenizer(Backend(WordLevel({"a": 0}, unk_token="[UNK]"))), {})
        assert tokenizer.encode("a") == [0]
        with pytest.raises(UserError, match=r"cannot encode the text \(.*UNK.*\)"):
            tokenizer.encode("b")

    @pytest.mark.parametrize("half", [0xD800, 0xDCE9], ids=["half a pair", "byte of a command line"])
    def test_what_is_no_unicode_is_refused(self, tokenizer: Tokenizer, half: int) -> None:
        with pytest.raises(UserError, match=rf"the text has '\\u{half:x}', .* send it as UTF-8"):
            tokenizer.encode(f"a{chr(half)}")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{}",
            "[]",
            '{"model": {"type": "BPE"}}',
            '{"version": "1.0", "model": null}',
            "\0",
            '{"a":' * 5000,
        ],
    )
    def test_broken_files_are_refused_in_one_line(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer") as raised:
            Tokenizer.open(tmp_path)
        assert str(raised.value).isprintable()

    def test_huge_file_is_refused_unread(self, tmp_path: Path) -> None:
        with (tmp_path / "tokenizer.json").open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(UserError, match="at most"):
            Tokenizer.open(tmp_path)

    @pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
    def test_older_formats_get_advice(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x0a\x0e")
        with pytest.raises(UserError, match="save_pretrained"):
            Tokenizer.open(tmp_path)

    def test_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"no tokenizer\.json"):
            Tokenizer.open(tmp_path)

    @pytest.mark.parametrize(
        "config", [{"bos_token": 3}, {"add_bos_token": "yes"}, {"eos_token": ["</s>"], "bos_token": "<s>"}]
    )
    def test_broken_config_is_named(self, tmp_path: Path, config: dict[str, object]) -> None:
        with pytest.raises(UserError, match=r"tokenizer_config\.json: (add_)?(b|e)os_token"):
            Tokenizer.open(save(tmp_path, **config))


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    found = [detokenizer.push(token_id) for token_id in ids]
    return [*found, detokenizer.finish()]


def library_text(kind: str, ids: list[int]) -> str:
    """What the library makes of ids that are in the vocabulary."""
    return str(BACKENDS[kind].decode(ids, skip_special_tokens=False))


class TestDetokenizer:
    @pytest.mark.parametrize("text", [*CORPUS[:4], "  leading", "a  b", "\n\n", "é", "😀", "x😀"])
    def test_joined_pieces_are_the_text(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text)
        parts = pieces(tokenizer, ids)
        assert "".join(parts) == tokenizer.decode(ids)
        assert "".join(parts).lstrip() == text.lstrip()  # Metaspace drops every space of the first piece
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(parts)

    def test_text_streams_without_delay(self, tokenizer: Tokenizer) -> None:
        parts = pieces(tokenizer, tokenizer.encode("The quick brown fox", add_special=False))
        assert all(parts[:-1])
        assert parts[-1] == ""

    def test_bytes_of_one_character_wait_for_each_other(self) -> None:
        tokenizer = TOKENIZERS["byte-level"]
        detokenizer = Detokenizer(tokenizer)
        ids = tokenizer.encode("ﬀ!")  # three bytes that the corpus never joins
        assert len(ids) == 4
        assert [detokenizer.push(token_id) for token_id in ids] == ["", "", "ﬀ", "!"]

    def test_unfinished_character_becomes_a_mark_at_the_end(self) -> None:
        tokenizer = TOKENIZERS["byte-level"]
        ids = tokenizer.encode("ﬀ")[:2]
        assert pieces(tokenizer, ids) == ["", "", "\N{REPLACEMENT CHARACTER}"]

    def test_special_tokens_are_left_out_or_shown(self, tokenizer: Tokenizer) -> None:
        ids = [1, *tokenizer.encode("hello", add_special=False), 2]
        assert "".join(pieces(tokenizer, ids)) == "hello"
        assert "".join(pieces(tokenizer, ids, skip_special=False)) == tokenizer.decode(
            ids, skip_special=False
        )

    def test_finish_begins_anew(self, tokenizer: Tokenizer) -> None:
        detokenizer = Detokenizer(tokenizer)
        ids = tokenizer.encode("hello there", add_special=False)
        for _ in range(2):
            text = "".join([detokenizer.push(token_id) for token_id in ids])
            assert text + detokenizer.finish() == "hello there"

    @pytest.mark.parametrize("kind", list(TOKENIZERS))
    @settings(max_examples=300)
    @given(data=st.data())
    def test_any_ids_give_the_text_of_all(self, kind: str, data: st.DataObject) -> None:
        """Random ids: broken UTF-8, special tokens inside of byte runs, ids beyond the vocabulary."""
        tokenizer = TOKENIZERS[kind]
        byte = st.integers(3, 258)
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2) | byte, max_size=30))
        skip = data.draw(st.booleans())
        skipped = tokenizer.special_ids if skip else ()
        whole = library_text(kind, [one for one in ids if one < tokenizer.vocab_size and one not in skipped])
        found = "".join(pieces(tokenizer, ids, skip_special=skip))
        # Of a broken run of bytes the library shows no character, SentencePiece's bytes one by one.
        assert found == whole or (kind != "byte-level" and "\ufffd" in whole and "\ufffd" in found)

    @pytest.mark.parametrize("kind", list(TOKENIZERS))
    @settings(max_examples=300)
    @given(data=st.data())
    def test_a_text_goes_on_as_the_text_of_all(self, kind: str, data: st.DataObject) -> None:
        """Random ids, cut anywhere, even within characters."""
        tokenizer = TOKENIZERS[kind]
        word = st.sampled_from(
            [*map(tokenizer.encode, ("the fox", " ", "你好", "\ufffd")), [0], [2], [300], [499]]
        )
        ids = [token for part in data.draw(st.lists(word, max_size=40)) for token in part]
        cut = data.draw(st.integers(0, len(ids)))
        before = [one for one in ids[:cut] if one < tokenizer.vocab_size and one not in tokenizer.special_ids]
        begun = len(before) - unfinished(tokenizer, before)
        shown, whole = tokenizer.decode(before[:begun]), tokenizer.decode(ids)
        detokenizer = Detokenizer(tokenizer, after=ids[:cut])
        rest = [*map(detokenizer.push, ids[cut:]), detokenizer.finish()]
        assert shown + "".join(rest) == whole

    def test_a_text_goes_on_after_a_long_run_of_bytes(self) -> None:
        tokenizer = TOKENIZERS["byte-fallback"]
        before, ids = tokenizer.encode("你好吗" * 9), tokenizer.encode("好 the", add_special=False)[1:]
        detokenizer = Detokenizer(tokenizer, after=before)
        assert "".join([*map(detokenizer.push, ids), detokenizer.finish()]) == "好 the"

    @pytest.mark.parametrize("kind", ["byte-fallback", "metaspace"])
    def test_a_character_of_bytes_is_shown_with_its_last_one(self, kind: str) -> None:
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode("你é😀", add_special=False)[-9:]
        assert pieces(tokenizer, ids) == ["", "", "你", "", "é", "", "", "", "😀", ""]

    @pytest.mark.parametrize("kind", ["byte-fallback", "metaspace"])
    @pytest.mark.parametrize(
        ("data", "shown"),
        [
            (b"\xe4\xbd", ["", "", "\ufffd"]),
            (b"\xe4\xbdA", ["", "", "\ufffdA", ""]),
            (b"\xff\xe4\xbd\xa0", ["\ufffd", "", "", "你", ""]),
            (b"A\xc3\xa9\xffA", ["A", "", "é", "\ufffd", "A", ""]),
            (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd", ""]),  # half of a surrogate pair
        ],
    )
    def test_a_broken_run_of_bytes(self, kind: str, data: bytes, shown: list[str]) -> None:
        tokenizer = TOKENIZERS[kind]
        ids = [token for byte in data if (token := tokenizer.token_id(f"<0x{byte:02X}>")) is not None]
        assert pieces(tokenizer, ids) == shown
        then = tokenizer.encode("the", add_special=False)
        assert "".join(pieces(tokenizer, [*ids, *then])) == "".join(shown) + " the"

    @settings(max_examples=300)
    @given(ids=st.lists(st.integers(3, 258), min_size=20, max_size=150))
    def test_bytes_without_end_give_the_text_of_all(self, ids: list[int]) -> None:
        tokenizer = TOKENIZERS["byte-level"]
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)

    @pytest.mark.parametrize("kind", list(TOKENIZERS))
    @settings(max_examples=200)
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


@pytest.mark.parametrize(
    "text", ["the cat", "Once upon a time 你好 😀!", "  two  spaces", "naïve café\n\tover"]
)
def test_the_bytes_of_tokens_are_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    """But for the space with which SentencePiece's texts begin, and which is not shown."""
    data = [tokenizer.token_bytes(token) for token in tokenizer.encode(text, add_special=False)]
    joined = b"".join(part for part in data if part is not None)
    assert joined.removeprefix(b"" if joined.decode() == text else b" ").decode() == text


def test_tokens_with_and_without_a_space_differ() -> None:
    for name, mark in (("byte-level", "\u0120"), ("byte-fallback", "▁"), ("metaspace", "▁")):
        tokenizer = TOKENIZERS[name]
        inner, first = tokenizer.token_id("the"), tokenizer.token_id(f"{mark}the")
        if inner is not None:
            assert tokenizer.token_bytes(inner) == b"the"
        assert first is not None
        assert tokenizer.token_bytes(first) == b" the"


def test_a_token_may_be_a_part_of_a_character() -> None:
    byte = TOKENIZERS["byte-fallback"].token_id("<0xE4>")
    alone = TOKENIZERS["byte-level"].token_id("\u00e4")
    assert byte is not None
    assert alone is not None
    assert TOKENIZERS["byte-fallback"].token_bytes(byte) == b"\xe4"
    assert TOKENIZERS["byte-level"].token_bytes(alone) == b"\xe4"


def test_special_tokens_have_bytes_and_ids_beyond_the_vocabulary_have_none(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(1) == b"<s>"
    assert tokenizer.token_bytes(10_000) is None


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
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
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


def test_a_text_that_grows_without_measure_ends_its_process_and_nothing_else(tmp_path: Path) -> None:
    content = json.loads(KINDS["byte-level"]().to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"normalizer": BOMB}))
    tokenizer = Tokenizer.open(tmp_path)
    with pytest.raises(UserError, match="the model's tokenizer took too much time or memory"):
        tokenizer.encode("the sea")
    assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"


def test_a_text_of_too_many_tokens_is_not_encoded_to_its_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path))
    with pytest.raises(TooManyTokens) as raised:
        tokenizer.encode("the sea " * 100_000, most=100)
    assert 100 < raised.value.tokens < 2100
    exact = len(tokenizer.encode("the sea " * 10_000))
    assert exact <= tokenizer.count("the sea " * 10_000) < exact + 10  # pieces begin with a space each
