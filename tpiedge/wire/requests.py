"""A request for generation, as the master sends it to rank 0."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from tpiedge.wire.fields import MAX_ANSWER_TOKENS, MAX_GRAMMAR, MAX_PROMPT_TOKENS, U32, U64, Finite, Name

SCOPE_CHARACTERS: Final = 32
GrammarKind = Literal["json", "lark", "regex"]
"""A JSON schema, a context-free grammar of llguidance or llama.cpp, or a regular expression."""
Pooling = Literal["none", "mean", "last"]
"""The vector made of a prompt's final hidden states: none, their mean, or the last one."""


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0  # 0: greedy
    top_k: U32 = 0  # 0: all tokens
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0  # 1: all tokens
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.0, le=1e6)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    logit_bias: Annotated[tuple[tuple[U32, Finite], ...], Meta(max_length=1024)] = ()
    seed: U64 = 0
    logprobs: Annotated[int, Meta(ge=0, le=32)] = 0  # how many of the likeliest tokens to return


@dataclass(frozen=True, slots=True)
class Grammar:
    """The texts that are allowed as an answer."""

    kind: GrammarKind
    text: Annotated[str, Meta(max_length=MAX_GRAMMAR)]  # not parsed here
    begins: U32 | None = None  # the token from which the grammar applies
    #: Tokens that open and close reasoning, where the grammar does not begin.
    thoughts: Annotated[tuple[U32, ...], Meta(max_length=2)] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to continue `prompt_ids`."""

    id: Name
    prompt_ids: Annotated[tuple[U32, ...], Meta(max_length=MAX_PROMPT_TOKENS)]
    max_tokens: U32
    sampling: Sampling = Sampling()
    stop_ids: Annotated[tuple[U32, ...], Meta(max_length=1024)] = ()
    ignore_eos: bool = False
    keep_prefix: bool = False  # the KV cache may serve later requests of the same `scope`
    prompt_scores: bool = False  # return the prompt's log probabilities
    #: Tokens of the answer from an earlier epoch; they count in `max_tokens`.
    answer_ids: Annotated[tuple[U32, ...], Meta(max_length=MAX_ANSWER_TOKENS)] = ()
    pooling: Pooling = "none"  # return a vector (`Embedding`) instead
    grammar: Grammar | None = None
    scope: Annotated[str, Meta(max_length=SCOPE_CHARACTERS)] = ""  # an opaque name of a client; "": shared
    pack: Annotated[str, Meta(max_length=64)] = ""  # the id of the model's weights; "": any
    keep_context: bool = False  # with `keep_prefix`: pages may stay on disk after the master ends
    preamble_tokens: U32 = 0  # of the prompt: the system prompt and tools, which other chats share
