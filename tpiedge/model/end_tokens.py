"""Tokens that end an answer, found by their texts. Pure.

Files name some of these tokens and forget others, so their texts count, whatever a file says of their kind. A text that
people write, as the HTML tag </s>, counts only where the vocabulary has it as a mark, not as a piece of text.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Final

_MARKS: Final = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
)
"""Nobody writes these; llama.cpp has the same."""
_TAGS: Final = ("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]")
_MESSAGE_END: Final = "<|end|>"
_MESSAGE_FORMATS: Final = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}, {"<|call|>", "<|flush|>"})
"""Where a vocabulary has all marks of one of these, <|end|> ends a message, and further ones follow in one answer."""


def ending_ids(vocabulary: Mapping[str, int], marks: Container[int]) -> Iterable[int]:
    """The ids of `vocabulary` (text -> id) that end an answer. `marks`: ids that are no pieces of text."""
    texts = [text for text in _MARKS if text in vocabulary]
    if any(marks_of_format <= set(texts) for marks_of_format in _MESSAGE_FORMATS):
        texts = [text for text in texts if text != _MESSAGE_END]
    texts += [text for text in _TAGS if text in vocabulary and _is_mark(text, vocabulary, marks)]
    return [vocabulary[text] for text in texts]


def _is_mark(text: str, vocabulary: Mapping[str, int], marks: Container[int]) -> bool:
    """Whether no two pieces of the vocabulary can become `text`, or the file says that it is a mark."""
    if vocabulary[text] in marks:
        return True
    return not any(text[:at] in vocabulary and text[at:] in vocabulary for at in range(1, len(text)))
