"""Messages of the control plane: the master and each node."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, structs

from tpiedge.wire import fields as f
from tpiedge.wire.requests import GenerationRequest

FinishReason = Literal["stop", "length", "cancel"]

SPECULATE_AUTO: Final = 255
"""`Assign.speculate`: draft as many tokens as save time."""


class Hello(f.NodeMessage, frozen=True, tag=32):
    """Node to master: the node's first message."""


class KVSnapshot(f.Wire, frozen=True):
    """KV pages saved by the nodes of `epoch`. A node finds its KV heads on its machine, except those that rank 0 sends:
    `scattered`, (rank, head). `private`: the pages must not enter the prefix cache."""

    epoch: f.U32
    pages: f.U32
    private: bool
    scattered: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_MOVES)]


class Assign(f.NodeMessage, frozen=True, tag=33):
    """Master to node: the node's part of the plan, among the ranks `nodes`.

    `peer_keys`: public keys of all data endpoints. Unless `collective` is "star", every node but the last listens for
    higher ranks and connects to the lower ranks that Connect names. Partials travel as `wire`; keys and values are kept
    as `kv`. `grids`: each quantised layer's exponents of o and down (kernels/grid.py).

    Up to `sequences` requests run at once, each with at most `context_tokens` positions, together `capacity_tokens`.
    `speculate`: drafted tokens per step. `elastic`: some node uses free KV memory for weights.
    """

    nodes: Annotated[tuple[f.Rank, ...], Meta(max_length=f.MAX_NODES)]
    attention: f.UnitRange
    ffn: f.UnitRange
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
    snapshot: KVSnapshot | None = None


class Listening(f.NodeMessage, frozen=True, tag=34):
    """Node to master: the address of the node's data endpoint."""

    endpoint: f.Name


class Connect(f.EpochMessage, frozen=True, tag=50):
    """Master to node: the data endpoints to connect to, by rank."""

    endpoints: Annotated[tuple[tuple[f.Rank, f.Name], ...], Meta(max_length=f.MAX_NODES)]


class Loading(f.NodeMessage, frozen=True, tag=35):
    """Node to master: progress of loading weights."""

    done_bytes: f.U64
    total_bytes: f.U64


@dataclass(frozen=True, slots=True)
class WorkerLink:
    low: f.Rank
    high: f.Rank
    round_trip_s: f.Seconds


class Ready(f.NodeMessage, frozen=True, tag=36):
    """Node to master: the node can take steps. Rank 0 adds collectives, links, and `why` for a surprising choice."""

    weight_bytes: f.U64
    collective: f.Name = ""
    bulk_collective: f.Name = ""
    why: f.Text = ""
    links: Annotated[tuple[WorkerLink, ...], Meta(max_length=f.MAX_ARRAY)] = ()


class Heartbeat(f.NodeMessage, frozen=True, tag=37):
    """Node to master, regularly: the engine's progress. Rank 0 adds how much of each prompt is computed."""

    step: f.U64
    block: f.U32
    bytes_read: f.U64
    reading: Annotated[tuple[tuple[f.Name, f.U32], ...], Meta(max_length=f.MAX_SEQUENCES)] = ()


class PeerPulse(f.Wire, frozen=True):
    """The latest progress of `rank` that the master knows."""

    rank: f.Rank
    step: f.U64
    block: f.U32
    bytes_read: f.U64
    state: f.Name


class Pulse(f.EpochMessage, frozen=True, tag=38):
    """Master to nodes, regularly: the progress of all nodes."""

    peers: Annotated[tuple[PeerPulse, ...], Meta(max_length=f.MAX_NODES)]


class Lost(f.NodeMessage, frozen=True, tag=39):
    """Master to nodes: `rank` is gone for this epoch."""

    cause: f.Text


class Generate(f.EpochMessage, frozen=True, tag=40):
    """Master to rank 0: answer this request."""

    request: GenerationRequest


class Compile(f.EpochMessage, frozen=True, tag=56):
    """Master to rank 0: compile the grammar of a request that Generate will bring. The answer is Compiled or Failed or,
    after Cancel, Finished. Requests of one non-empty `group` share a grammar while any request lasts."""

    request: GenerationRequest
    group: f.Name


class Compiled(f.EpochMessage, frozen=True, tag=57):
    """Rank 0 to master: the answer may begin. `processor_s`: CPU time of compiling."""

    request: f.Name
    processor_s: f.Seconds


class Halt(f.EpochMessage, frozen=True, tag=51):
    """Master to rank 0: take no more steps, save the running requests' KV cache for the epoch `following`, and answer
    Halted. `kept`: heads that each rank saves. Rank 0 also saves its `stored`, and others' `gathered` (rank, head)."""

    following: f.U32
    kept: Annotated[tuple[f.UnitRange, ...], Meta(max_length=f.MAX_NODES)]
    stored: Annotated[tuple[f.U32, ...], Meta(max_length=f.MAX_MOVES)]
    gathered: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_MOVES)]


class Halted(f.NodeMessage, frozen=True, tag=52):
    """Rank 0 to master: no more tokens are drawn; `pages` pages are saved for the epoch `following` (0: see `why`)."""

    following: f.U32
    pages: f.U32
    why: f.Text


class Resume(f.EpochMessage, frozen=True, tag=53):
    """Master to rank 0, after Halt: no epoch follows."""


class Token(f.EpochMessage, frozen=True, tag=41):
    """Rank 0 to master: the answer's `index`-th token; `logprobs`: (id, log probability) of the likeliest tokens."""

    request: f.Name
    index: f.U32
    token: f.U32
    logprobs: Annotated[tuple[tuple[f.U32, f.Finite], ...], Meta(max_length=33)]


class PromptScores(f.EpochMessage, frozen=True, tag=48):
    """Rank 0 to master: log probabilities of the prompt from `first` on; `likeliest`: equally many tokens for each."""

    request: f.Name
    first: f.U32
    scores: Annotated[tuple[f.Finite, ...], Meta(max_length=f.MAX_ARRAY)]
    likeliest: Annotated[tuple[tuple[f.U32, f.Finite], ...], Meta(max_length=32 * f.MAX_ARRAY)] = ()

    def since(self, position: int) -> "PromptScores":
        known = position - self.first
        each = len(self.likeliest) // len(self.scores)
        return structs.replace(
            self, first=position, scores=self.scores[known:], likeliest=self.likeliest[known * each :]
        )


class Embedding(f.EpochMessage, frozen=True, tag=54):
    """Rank 0 to master: the pooled hidden states of the prompt, after the final norm."""

    request: f.Name
    values: Annotated[tuple[f.Finite, ...], Meta(max_length=f.MAX_HIDDEN)]


AnswerPart = Token | PromptScores | Embedding


class Finished(f.EpochMessage, frozen=True, tag=42):
    """Rank 0 to master: the answer of `tokens` tokens is complete, after `steps` sweeps. The first `cached_tokens`
    positions of the prompt came from earlier requests. `processor_s`: CPU time for the grammar since Compiled."""

    request: f.Name
    reason: FinishReason
    prompt_tokens: f.U32
    tokens: f.U32
    cached_tokens: f.U32
    steps: f.U32
    processor_s: f.Seconds = 0.0


class Failed(f.NodeMessage, frozen=True, tag=43):
    """Node to master: an error of class `kind` ended `request` ("": the node). `processor_s`: as in Finished."""

    request: f.Name
    kind: f.Name
    message: f.Text
    processor_s: f.Seconds = 0.0


class Breach(f.NodeMessage, frozen=True, tag=49):
    """Rank 0 to master, before Failed: node `offender` broke the protocol on the tensor plane."""

    offender: f.Rank
    cause: f.Text


class Cancel(f.EpochMessage, frozen=True, tag=44):
    """Master to rank 0: end this request."""

    request: f.Name


class AskStats(f.EpochMessage, frozen=True, tag=45):
    """Master to node: send Stats. `timeline` (rank 0): all nodes record the next step without prompts (StepSpans)."""

    timeline: bool = False


class Stats(f.NodeMessage, frozen=True, tag=46):
    """Node to master: what the node used since its counters were reset.

    `attention_s` and `ffn_s` are parts of `compute_s`. `reads`: reads of streamed weights from disk; `load_s`: seconds
    with at least one read under way. `prefetch_hits`: blocks that were read ahead; `stalls`: blocks that the node
    waited for, `weight_wait_s` in all. `window_bytes` is the ring's part of `weight_bytes`. `dropped`: messages that
    came late; `refused`: messages that no honest node sends. Some of `kv_pages_used` are kept for later requests.
    `accepted` of `drafted` tokens were right.
    """

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


class StepSpans(f.NodeMessage, frozen=True, tag=55):
    """Node to master: spans (start, end) of a step of `tokens` positions, in microseconds since the first span began:
    of arithmetic, of all-reduces, and of waits for weights, which may lie within arithmetic."""

    step: f.U64
    tokens: f.U32
    compute: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]
    reduce: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]
    disk: Annotated[tuple[tuple[f.U32, f.U32], ...], Meta(max_length=f.MAX_SPANS)]


class Shutdown(f.EpochMessage, frozen=True, tag=47):
    """Master to node: finish and exit."""
