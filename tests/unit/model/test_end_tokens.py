"""Which tokens end an answer."""

import pytest

from tests.unit.model.vocabularies import KINDS
from tpiedge.model.named_tokens import ending_ids
from tpiedge.model.text_child import LoadedTokenizer
from tpiedge.model.tokenizer import Tokenizer

CASES: list[tuple[list[str], list[int], list[str]]] = [
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
    (
        ["<|tool_call|>", "<think>", "</think>", "<tool_response>", "<|fim_pad|>", "<|file_sep|>"],
        [0, 1, 2, 3],
        [],
    ),
]


@pytest.mark.parametrize(("texts", "marks", "ends"), CASES)
def test_texts_tell(texts: list[str], marks: list[int], ends: list[str]) -> None:
    vocabulary = {text: index for index, text in enumerate(texts)}
    assert {texts[index] for index in ending_ids(vocabulary, marks)} == set(ends)


def test_the_tokenizers_own_end_comes_first() -> None:
    backend = KINDS["byte-level"]()
    backend.add_special_tokens(["<|im_end|>", "<|finish|>"])
    tokenizer = Tokenizer(LoadedTokenizer(backend), {"eos_token": "<|finish|>"})
    assert tokenizer.end_ids == (402, 401, 2)
    assert Tokenizer(LoadedTokenizer(KINDS["byte-level"]()), {}).end_ids == (2,)
