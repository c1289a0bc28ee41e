"""Messages of the control plane: the master and each node."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, structs

from tpiedge.wire.fields import (
    I8,
    U8,
    U32,
    U64,
    CollectiveChoice,
    Compute,
    Finite,
    Key,
    KVPrecision,
    Message,
    Name,
    Rank,
    Seconds,
    Text,
    UnitRange,
    Wire,
    WirePrecision,
)
from tpiedge.wire.limits import (
    MAX_ARRAY,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_MOVES,
    MAX_NODES,
    MAX_SEQUENCES,
    MAX_SPANS,
)
from tpiedge.wire.requests import GenerationRequest
from tpiedge.wire.weights import WeightMemory

FinishReason = Literal["stop", "length", "cancel"]

SPECULATE_AUTO: Final = 255
"""`Assign.speculate`: as many drafted tokens as pay."""


class Hello(Message, frozen=True):
    """Node to master, first of all: who it is and what it runs."""

    epoch: U32
    rank: Rank
    pid: U32
    protocol: U32
    version: Name
    threads: U32
    cpu: Name


class Carried(Wire, frozen=True):
    """What the nodes of `epoch` left of their KV cache: `pages` pages, on every machine of those heads that its node
    needs now. Rank 0 has those as well that other nodes lack: it sends to each rank its heads in `brought`. `private`:
    their bits show who computed them, so that no other request is to find them."""

    epoch: U32
    pages: U32
    private: bool
    brought: Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_MOVES)]


class Assign(Message, frozen=True):
    """Master to node: its part of the plan, among the ranks `nodes`.

    `peer_keys` are the public keys of all nodes' data endpoints, its own included. `collective` is what the user wants,
    or "auto"; unless it is "star", every node but the last listens for those of higher rank, and connects to those of
    lower rank that Connect names. Partials travel as `wire`; keys and values are kept as `kv`. `grids`: of each layer
    of a quantised model, the exponents of o and down (kernels/grid.py).

    Up to `sequences` requests run at once. One takes at most `context_tokens` positions of the KV cache, all of them
    together at most `capacity_tokens`. `speculate` is how many tokens a step may draft for one of them; 0: none.
    `elastic`: the memory of positions that no request needs is wanted for weights, on some node. `carried`: what the
    epoch before left, if anything.
    """

    epoch: U32
    rank: Rank
    nodes: Annotated[tuple[Rank, ...], Meta(max_length=MAX_NODES)]
    attention: UnitRange
    ffn: UnitRange
    pack: Text
    compute: Compute
    threads: U32
    capacity_tokens: U32
    context_tokens: U32
    sequences: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)]
    speculate: U8
    peer_keys: Annotated[tuple[tuple[Rank, Key], ...], Meta(max_length=MAX_NODES)]
    weights: WeightMemory
    collective: CollectiveChoice = "auto"
    wire: WirePrecision = "f32"
    kv: KVPrecision = "f32"
    grids: Annotated[tuple[tuple[I8, I8], ...], Meta(max_length=MAX_LAYERS)] = ()
    elastic: bool = False
    carried: Carried | None = None


class Listening(Message, frozen=True):
    """Node to master: where its data endpoint is."""

    epoch: U32
    rank: Rank
    endpoint: Name


class Connect(Message, frozen=True):
    """Master to node: where the data endpoints are that it connects to, by rank."""

    epoch: U32
    endpoints: Annotated[tuple[tuple[Rank, Name], ...], Meta(max_length=MAX_NODES)]


class Loading(Message, frozen=True):
    """Node to master: how far it is with its weights."""

    epoch: U32
    rank: Rank
    done_bytes: U64
    total_bytes: U64


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """The link between the nodes of two workers, as they measured it."""

    low: Rank
    high: Rank
    round_trip_s: Seconds


class Ready(Message, frozen=True):
    """Node to master: it can take steps. Rank 0 also says by which collective the
    all-reduces of one token will go, and those of a whole chunk, and why where the user might wonder; and where there
    was a choice, the links between workers, the slowest where they are very many."""

    epoch: U32
    rank: Rank
    weight_bytes: U64
    load_s: Seconds
    collective: Name = ""
    bulk_collective: Name = ""
    why: Text = ""
    links: Annotated[tuple[WorkerLink, ...], Meta(max_length=MAX_ARRAY)] = ()


class Heartbeat(Message, frozen=True):
    """Node to master, regularly: that it lives and how far its engine is. Of rank 0 also how many of its positions are
    computed of each request whose prompt is being read."""

    epoch: U32
    rank: Rank
    step: U64
    block: U32
    bytes_read: U64
    reading: Annotated[tuple[tuple[Name, U32], ...], Meta(max_length=MAX_SEQUENCES)] = ()


class PeerPulse(Wire, frozen=True):
    """What the master last heard of `rank`."""

    rank: Rank
    step: U64
    block: U32
    bytes_read: U64
    state: Name


class Pulse(Message, frozen=True):
    """Master to nodes, regularly: how all nodes do."""

    epoch: U32
    peers: Annotated[tuple[PeerPulse, ...], Meta(max_length=MAX_NODES)]


class Lost(Message, frozen=True):
    """Master to nodes: `rank` is gone and will not answer in this epoch."""

    epoch: U32
    rank: Rank
    cause: Text


class Generate(Message, frozen=True):
    """Master to rank 0."""

    epoch: U32
    request: GenerationRequest


class Compile(Message, frozen=True):
    """Master to rank 0: have the grammar compiled of a request that Generate will bring, unless Cancel ends it.
    Compiled or Failed answers, and Finished a Cancel. Requests with the same `group` have the same grammar, which is
    compiled once while one of them lasts; "": none has."""

    epoch: U32
    request: GenerationRequest
    group: Name


class Compiled(Message, frozen=True):
    """Rank 0 to master: the answer may begin. `processor_s`: what that took of a processor."""

    epoch: U32
    request: Name
    processor_s: Seconds


class Halt(Message, frozen=True):
    """Master to rank 0: take no more steps. What the requests that run have in the KV cache is to be left for the epoch
    `following`: by each rank on its machine its KV heads `kept`, by rank 0 those in `stored` too, and those of other
    ranks, `sent` (rank, head). Halted answers."""

    epoch: U32
    following: U32
    kept: Annotated[tuple[UnitRange, ...], Meta(max_length=MAX_NODES)]
    stored: Annotated[tuple[U32, ...], Meta(max_length=MAX_MOVES)]
    sent: Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_MOVES)]


class Halted(Message, frozen=True):
    """Rank 0 to master: nothing more is drawn, and `pages` pages are left for the epoch `following`; 0 if none are, and
    `why` that is so."""

    epoch: U32
    rank: Rank
    following: U32
    pages: U32
    why: Text


class Resume(Message, frozen=True):
    """Master to rank 0, after Halt: no epoch follows; go on."""

    epoch: U32


class Token(Message, frozen=True):
    """Rank 0 to master: the `index`-th token of the answer and the likeliest (id, log probability)."""

    epoch: U32
    request: Name
    index: U32
    token: U32
    logprobs: Annotated[tuple[tuple[U32, Finite], ...], Meta(max_length=33)]


class PromptScores(Message, frozen=True):
    """Rank 0 to master: log probabilities of the prompt's own tokens, from position `first` on, and at each position
    the likeliest (id, log probability), as many at one as at another."""

    epoch: U32
    request: Name
    first: U32
    scores: Annotated[tuple[Finite, ...], Meta(max_length=MAX_ARRAY)]
    likeliest: Annotated[tuple[tuple[U32, Finite], ...], Meta(max_length=32 * MAX_ARRAY)] = ()

    def since(self, position: int) -> "PromptScores":
        """The part from that position on, which is one of these."""
        known = position - self.first
        each = len(self.likeliest) // len(self.scores)
        return structs.replace(
            self, first=position, scores=self.scores[known:], likeliest=self.likeliest[known * each :]
        )


class Embedding(Message, frozen=True):
    """Rank 0 to master: what the request's pooling makes of the hidden states of its prompt, after the final norm."""

    epoch: U32
    request: Name
    values: Annotated[tuple[Finite, ...], Meta(max_length=MAX_HIDDEN)]


AnswerPart = Token | PromptScores | Embedding
"""What comes of a request before its end."""


class Finished(Message, frozen=True):
    """Rank 0 to master: the answer is complete, `tokens` of it in `steps` sweeps. The keys and values of the first
    `cached_tokens` positions of the prompt had been kept from earlier requests. `processor_s`: what its grammar took of
    a processor, beside what Compiled said."""

    epoch: U32
    request: Name
    reason: FinishReason
    prompt_tokens: U32
    tokens: U32
    cached_tokens: U32
    steps: U32
    processor_s: Seconds = 0.0


class Failed(Message, frozen=True):
    """Node to master: an error of class `kind` ended the request, or (request "") the node itself. `processor_s`: as of
    Finished."""

    epoch: U32
    rank: Rank
    request: Name
    kind: Name
    message: Text
    processor_s: Seconds = 0.0


class Accused(Message, frozen=True):
    """Rank 0 to master, before its Failed: on the tensor plane the node `accused` broke the protocol."""

    epoch: U32
    rank: Rank
    accused: Rank
    cause: Text


class Cancel(Message, frozen=True):
    """Master to rank 0."""

    epoch: U32
    request: Name


class AskStats(Message, frozen=True):
    """Master to node. `timeline`, to rank 0: the next step in which answers alone are computed is to be recorded by all
    nodes, which answer with StepSpans."""

    epoch: U32
    timeline: bool = False


class Stats(Message, frozen=True):
    """Node to master: what it has used since its counters were reset.

    `attention_s` and `ffn_s` are parts of `compute_s`. Of weights that are streamed: `reads` from disk, `load_s` while
    at least one was under way, `prefetch_hits` blocks that had been read ahead when they were needed, `stalls` that
    were waited for, which cost `weight_wait_s`; they pass through `window_bytes` of the `weight_bytes`. Of what other
    nodes sent: `dropped` messages came too late, `refused` messages and connections are such as no honest node makes.
    The KV cache takes `kv_bytes`, and `kv_reserved_bytes` when it is full. Of its `kv_pages` `kv_pages_used` are in
    use, by requests that run or for later ones. Of `drafted` tokens `accepted` ones were right.
    """

    epoch: U32
    rank: Rank
    peak_rss_bytes: U64
    weight_bytes: U64
    kv_bytes: U64
    disk_read_bytes: U64
    bytes_sent: U64
    bytes_received: U64
    compute_s: Seconds
    attention_s: Seconds
    ffn_s: Seconds
    reduce_wait_s: Seconds
    weight_wait_s: Seconds
    load_s: Seconds
    reads: U64
    prefetch_hits: U64
    stalls: U64
    steps: U64
    tokens: U64
    head_s: Seconds
    dropped: U64
    refused: U64
    kv_pages: U32
    kv_pages_used: U32
    drafted: U64
    accepted: U64
    window_bytes: U64
    kv_reserved_bytes: U64


class StepSpans(Message, frozen=True):
    """Node to master: what it did in a step of `tokens` positions. Each span is (start, end) in microseconds since the
    first one began: its own arithmetic, its parts in all-reduces, and its waiting for weights, which may be within
    the arithmetic."""

    epoch: U32
    rank: Rank
    step: U64
    tokens: U32
    compute: Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_SPANS)]
    reduce: Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_SPANS)]
    disk: Annotated[tuple[tuple[U32, U32], ...], Meta(max_length=MAX_SPANS)]


class Shutdown(Message, frozen=True):
    """Master to node: finish and exit."""

    epoch: U32
