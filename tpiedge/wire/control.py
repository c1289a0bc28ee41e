"""Messages of the control plane: the master and each node."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, structs

from tpiedge.wire import fields as f
from tpiedge.wire.requests import GenerationRequest

FinishReason = Literal["stop", "length", "cancel"]

SPECULATE_AUTO: Final = 255
"""`Assign.speculate`: as many drafted tokens as pay."""


class Hello(f.Message, frozen=True):
    """Node to master, first of all: who it is and what it runs."""

    epoch: f.U32
    rank: f.Rank
    pid: f.U32
    protocol: f.U32
    version: f.Name
    threads: f.U32
    cpu: f.Name


class Carried(f.Wire, frozen=True):
    """What the nodes of `epoch` left of their KV cache: `pages` pages, on every machine of those heads that its node
    needs now. Rank 0 has those as well that other nodes lack: it sends to each rank its heads in `brought`. `private`:
    their bits show who computed them, so that no other request is to find them."""

    epoch: f.U32
    pages: f.U32
    private: bool
    brought: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_MOVES)]


class Assign(f.Message, frozen=True):
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

    epoch: f.U32
    rank: f.Rank
    nodes: Annotated[tuple[f.Rank, ...], Meta(max_length=f.MAX_NODES)]
    attention: f.UnitRange
    ffn: f.UnitRange
    pack: f.Text
    compute: f.Compute
    threads: f.U32
    capacity_tokens: f.U32
    context_tokens: f.U32
    sequences: Annotated[int, Meta(ge=1, le=f.MAX_SEQUENCES)]
    speculate: f.U8
    peer_keys: Annotated[tuple[tuple[f.Rank, f.Key], ...], Meta(max_length=f.MAX_NODES)]
    weights: f.WeightMemory
    collective: f.CollectiveChoice = "auto"
    wire: f.WirePrecision = "f32"
    kv: f.KVPrecision = "f32"
    grids: Annotated[tuple[tuple[f.I8, f.I8], ...], Meta(max_length=f.MAX_LAYERS)] = ()
    elastic: bool = False
    carried: Carried | None = None


class Listening(f.Message, frozen=True):
    """Node to master: where its data endpoint is."""

    epoch: f.U32
    rank: f.Rank
    endpoint: f.Name


class Connect(f.Message, frozen=True):
    """Master to node: where the data endpoints are that it connects to, by rank."""

    epoch: f.U32
    endpoints: Annotated[tuple[tuple[f.Rank, f.Name], ...], Meta(max_length=f.MAX_NODES)]


class Loading(f.Message, frozen=True):
    """Node to master: how far it is with its weights."""

    epoch: f.U32
    rank: f.Rank
    done_bytes: f.U64
    total_bytes: f.U64


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """The link between the nodes of two workers, as they measured it."""

    low: f.Rank
    high: f.Rank
    round_trip_s: f.Seconds


class Ready(f.Message, frozen=True):
    """Node to master: it can take steps. Rank 0 also says by which collective the
    all-reduces of one token will go, and those of a whole chunk, and why where the user might wonder; and where there
    was a choice, the links between workers, the slowest where they are very many."""

    epoch: f.U32
    rank: f.Rank
    weight_bytes: f.U64
    load_s: f.Seconds
    collective: f.Name = ""
    bulk_collective: f.Name = ""
    why: f.Text = ""
    links: Annotated[tuple[WorkerLink, ...], Meta(max_length=f.MAX_ARRAY)] = ()


class Heartbeat(f.Message, frozen=True):
    """Node to master, regularly: that it lives and how far its engine is. Of rank 0 also how many of its positions are
    computed of each request whose prompt is being read."""

    epoch: f.U32
    rank: f.Rank
    step: f.U64
    block: f.U32
    bytes_read: f.U64
    reading: Annotated[tuple[tuple[f.Name, f.U32], ...], Meta(max_length=f.MAX_SEQUENCES)] = ()


class PeerPulse(f.Wire, frozen=True):
    """What the master last heard of `rank`."""

    rank: f.Rank
    step: f.U64
    block: f.U32
    bytes_read: f.U64
    state: f.Name


class Pulse(f.Message, frozen=True):
    """Master to nodes, regularly: how all nodes do."""

    epoch: f.U32
    peers: Annotated[tuple[PeerPulse, ...], Meta(max_length=f.MAX_NODES)]


class Lost(f.Message, frozen=True):
    """Master to nodes: `rank` is gone and will not answer in this epoch."""

    epoch: f.U32
    rank: f.Rank
    cause: f.Text


class Generate(f.Message, frozen=True):
    """Master to rank 0."""

    epoch: f.U32
    request: GenerationRequest


class Compile(f.Message, frozen=True):
    """Master to rank 0: have the grammar compiled of a request that Generate will bring, unless Cancel ends it.
    Compiled or Failed answers, and Finished a Cancel. Requests with the same `group` have the same grammar, which is
    compiled once while one of them lasts; "": none has."""

    epoch: f.U32
    request: GenerationRequest
    group: f.Name


class Compiled(f.Message, frozen=True):
    """Rank 0 to master: the answer may begin. `processor_s`: what that took of a processor."""

    epoch: f.U32
    request: f.Name
    processor_s: f.Seconds


class Halt(f.Message, frozen=True):
    """Master to rank 0: take no more steps. What the requests that run have in the KV cache is to be left for the epoch
    `following`: by each rank on its machine its KV heads `kept`, by rank 0 those in `stored` too, and those of other
    ranks, `sent` (rank, head). Halted answers."""

    epoch: f.U32
    following: f.U32
    kept: Annotated[tuple[f.UnitRange, ...], Meta(max_length=f.MAX_NODES)]
    stored: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_MOVES)]
    sent: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_MOVES)]


class Halted(f.Message, frozen=True):
    """Rank 0 to master: nothing more is drawn, and `pages` pages are left for the epoch `following`; 0 if none are, and
    `why` that is so."""

    epoch: f.U32
    rank: f.Rank
    following: f.U32
    pages: f.U32
    why: f.Text


class Resume(f.Message, frozen=True):
    """Master to rank 0, after Halt: no epoch follows; go on."""

    epoch: f.U32


class Token(f.Message, frozen=True):
    """Rank 0 to master: the `index`-th token of the answer and the likeliest (id, log probability)."""

    epoch: f.U32
    request: f.Name
    index: f.U32
    token: f.U32
    logprobs: Annotated[tuple[tuple[f.U32, f.Finite], ...], Meta(max_length=33)]


class PromptScores(f.Message, frozen=True):
    """Rank 0 to master: log probabilities of the prompt's own tokens, from position `first` on, and at each position
    the likeliest (id, log probability), as many at one as at another."""

    epoch: f.U32
    request: f.Name
    first: f.U32
    scores: Annotated[tuple[f.Finite, ...], Meta(max_length=f.MAX_ARRAY)]
    likeliest: Annotated[tuple[tuple[f.U32, f.Finite], ...], Meta(max_length=32 * f.MAX_ARRAY)] = ()

    def since(self, position: int) -> "PromptScores":
        """The part from that position on, which is one of these."""
        known = position - self.first
        each = len(self.likeliest) // len(self.scores)
        return structs.replace(
            self, first=position, scores=self.scores[known:], likeliest=self.likeliest[known * each :]
        )


class Embedding(f.Message, frozen=True):
    """Rank 0 to master: what the request's pooling makes of the hidden states of its prompt, after the final norm."""

    epoch: f.U32
    request: f.Name
    values: Annotated[tuple[f.Finite, ...], Meta(max_length=f.MAX_HIDDEN)]


AnswerPart = Token | PromptScores | Embedding
"""What comes of a request before its end."""


class Finished(f.Message, frozen=True):
    """Rank 0 to master: the answer is complete, `tokens` of it in `steps` sweeps. The keys and values of the first
    `cached_tokens` positions of the prompt had been kept from earlier requests. `processor_s`: what its grammar took of
    a processor, beside what Compiled said."""

    epoch: f.U32
    request: f.Name
    reason: FinishReason
    prompt_tokens: f.U32
    tokens: f.U32
    cached_tokens: f.U32
    steps: f.U32
    processor_s: f.Seconds = 0.0


class Failed(f.Message, frozen=True):
    """Node to master: an error of class `kind` ended the request, or (request "") the node itself. `processor_s`: as of
    Finished."""

    epoch: f.U32
    rank: f.Rank
    request: f.Name
    kind: f.Name
    message: f.Text
    processor_s: f.Seconds = 0.0


class Accused(f.Message, frozen=True):
    """Rank 0 to master, before its Failed: on the tensor plane the node `accused` broke the protocol."""

    epoch: f.U32
    rank: f.Rank
    accused: f.Rank
    cause: f.Text


class Cancel(f.Message, frozen=True):
    """Master to rank 0."""

    epoch: f.U32
    request: f.Name


class AskStats(f.Message, frozen=True):
    """Master to node. `timeline`, to rank 0: the next step in which answers alone are computed is to be recorded by all
    nodes, which answer with StepSpans."""

    epoch: f.U32
    timeline: bool = False


class Stats(f.Message, frozen=True):
    """Node to master: what it has used since its counters were reset.

    `attention_s` and `ffn_s` are parts of `compute_s`. Of weights that are streamed: `reads` from disk, `load_s` while
    at least one was under way, `prefetch_hits` blocks that had been read ahead when they were needed, `stalls` that
    were waited for, which cost `weight_wait_s`; they pass through `window_bytes` of the `weight_bytes`. Of what other
    nodes sent: `dropped` messages came too late, `refused` messages and connections are such as no honest node makes.
    The KV cache takes `kv_bytes`, and `kv_reserved_bytes` when it is full. Of its `kv_pages` `kv_pages_used` are in
    use, by requests that run or for later ones. Of `drafted` tokens `accepted` ones were right.
    """

    epoch: f.U32
    rank: f.Rank
    peak_rss_bytes: f.U64
    weight_bytes: f.U64
    kv_bytes: f.U64
    disk_read_bytes: f.U64
    bytes_sent: f.U64
    bytes_received: f.U64
    compute_s: f.Seconds
    attention_s: f.Seconds
    ffn_s: f.Seconds
    reduce_wait_s: f.Seconds
    weight_wait_s: f.Seconds
    load_s: f.Seconds
    reads: f.U64
    prefetch_hits: f.U64
    stalls: f.U64
    steps: f.U64
    tokens: f.U64
    head_s: f.Seconds
    dropped: f.U64
    refused: f.U64
    kv_pages: f.U32
    kv_pages_used: f.U32
    drafted: f.U64
    accepted: f.U64
    window_bytes: f.U64
    kv_reserved_bytes: f.U64


class StepSpans(f.Message, frozen=True):
    """Node to master: what it did in a step of `tokens` positions. Each span is (start, end) in microseconds since the
    first one began: its own arithmetic, its parts in all-reduces, and its waiting for weights, which may be within
    the arithmetic."""

    epoch: f.U32
    rank: f.Rank
    step: f.U64
    tokens: f.U32
    compute: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]
    reduce: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]
    disk: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]


class Shutdown(f.Message, frozen=True):
    """Master to node: finish and exit."""

    epoch: f.U32
