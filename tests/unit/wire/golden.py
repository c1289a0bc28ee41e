"""Every message, the bytes of those whose form is fixed, and the means to write others by hand."""

import msgspec

from tpiedge.wire import control as c
from tpiedge.wire import data as d
from tpiedge.wire import epochs as e
from tpiedge.wire import join as j
from tpiedge.wire.codec import PROTOCOL, TAGS
from tpiedge.wire.fields import Keeping, Message, ShareRanges, TensorHeader, WeightMemory
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

GREEDY = Sampling(0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, ((5, -1.5),), 2**64 - 1, 2)
GRAMMAR = Grammar("regex", "a|b", 7, (8, 9))
REQUEST = GenerationRequest(
    "r1", (1, 2, 70000), 16, GREEDY, (2,), False, True, False, (7, 8), "mean", GRAMMAR, "5c09e"
)
ROW = TensorHeader("f32", (1, 2048))
SHARE = ShareRanges((0, 32), (("attention", (8, 16)), ("ffn", (0, 3))))

MESSAGES: list[Message] = [
    d.StepPlan(1, 2, (d.Segment(0, 5, 1, 1), d.Segment(1, 0, 300, 0)), 256, 301, 1, (d.TableChange(1, 0, (7,
        65536), 0),), (3,), "mesh", "two-shot", 1 << 16, "int8"),
    d.PageOrders(1, 9, (d.PageOrder(3, "leave", True, (7, 65536), b"n" * 32),)),
    d.PageOrders(1, 10, (), (3, 4), ((1, 3),), b"n" * 16, b"u" * 32, "halt"),
    d.Hidden(1, 2, 0, ROW),
    d.Partial(1, 2, 3, 0, 2**32 - 1, 0, 1, ROW),
    d.Partial(1, 2, 3, 0, 0, 1, 1, None),
    d.Reduced(1, 2, 3, 0, 7, 1, ROW),
    d.Partial(1, 2, 3, 0, 0, 0, 1, TensorHeader("i32", (1, 2048))),
    d.Reduced(1, 2, 3, 0, 0, 1, TensorHeader("i64", (1, 2048))),
    d.Gathered(1, 2, 3, 0, 0, 1, TensorHeader("bf16", (2, 2))),
    d.Slice(1, 2, 3, 0, 7, 1, 4, 1, ROW),
    d.Slice(1, 2, 3, 0, 0, 0, 4, 1, None),
    d.Survey(1, 2),
    d.LinkReport(1, 2, "host", 4, (d.MeasuredLink(0, 0.25, 1000000000.0), d.MeasuredLink(1, 0.5, 0.0))),
    c.Hello(0, 1),
    c.Assign(1, 1, (0, 1), SHARE, "bf16", 2, 65536, 4096, 16, 255, ((0, "k" * 40), (1, "")),
        WeightMemory(1 << 30, 4096, "auto", True), "mesh", "bf16", "q4", ((-14, 3), (-16, -15, 0, 1)), True,
        c.KVSnapshot(b"n" * 16, ((1, 3),)),
        c.PageKeys(b"s", b"o", b"k", b"p", True, False)),
    c.Listening(1, 0, "tcp://127.0.0.1:5"),
    c.Connect(1, ((0, "tcp://127.0.0.1:5"), (1, "tcp://[::1]:6"))),
    c.Loading(1, 1, 10, 1 << 33),
    c.Ready(1, 0, 1 << 33, "mesh", "two-shot", "why", (c.WorkerLink(1, 2, 0.5),)),
    c.Heartbeat(1, 0, 7, 8, 9, (("r1", 70),)),
    c.Heartbeat(1, 1, 7, 8, 9),
    c.Pulse(1, (c.PeerPulse(0, 7, 8, 9, "ready"),)),
    c.Lost(1, 1, "killed by signal 9"),
    c.Generate(1, REQUEST),
    c.Token(1, "r1", 0, 70000, ((70000, -0.5), (3, -2.0))),
    c.PromptScores(1, "r1", 1, (-0.5, -2.0), ((7, -0.25), (9, -1.0))),
    c.Embedding(1, "r1", (0.5, -2.0)),
    c.Compile(1, REQUEST, "g"),
    c.Compiled(1, "r1", 0.5),
    c.Finished(1, "r1", "length", 3, 16, 2, 9, 0.5, 1),
    c.Failed(1, 0, "", "PeerLost", "node 1 was lost"),
    c.Breach(1, 0, 2, "no"),
    c.Halt(1, 2, ((1, 3),)),
    c.Halted(1, 0, 2, b"n" * 16, "why"),
    c.Resume(1),
    c.Cancel(1, "r1"),
    c.StepSpans(1, 2, 7, 3, ((0, 5), (9, 70000)), ((5, 9),), ()),
    c.AskStats(1, True),
    c.AskStats(1),
    c.Stats(1, 0, 1, 2, 3, 4, 5, 6, 0.5, 0.25, 0.25, 0.25, 0.0, 0.5, 9, 10, 11, 7, 8, 0.125, 12, 13, 64, 17, 20,
        14, 21, 22, 23, 24, 25, 26, 0.5, 0.25, 27),
    c.Shutdown(1),
    j.Enrol(1, "0.1.0", "pi", "s3", "ab", "2.9.1", "little-endian IEEE 754"),
    j.Enrolled("w-1", "c", 1, "0.1.0"),
    j.Refused("used", "no"),
    j.PairingRequest(1, "0.1.0", "pi", b"n"),
    j.Challenge("k" * 40, b"n"),
    j.Reveal(b"p"),
    j.PairingResult(b"p", ""),
    d.Fetch(7, 1, "pppp", "blob", "bbbb", 4096, 1 << 20),
    d.FileChunk(7, 1, 1 << 33, TensorHeader("u8", (1 << 20,))),
    d.FetchFailed(7, 1, "no"),
    e.Offer(0, "pi", 7, "avx2", 2, 1 << 32, 1 << 36, e.Capacity(
        3000000000.0, 4000000000.0), 200000000.0, Keeping("none", 2, 3, False), 10, 11),
    e.AskPages(0, 5, True),
    e.PageFiles(0, 5, 2, 1 << 33, 1, 4096, "why"),
    e.Prepare(3, 1, 2, "p1", SHARE, 5, 0.3, 1.5, 60.0),
    e.Preparing(3, 10, 1 << 33, 100000000.0),
    e.Spawned(3, 1, 4242),
    e.NodeEnded(3, "no room"),
    e.Release(3),
    e.AgentPulse(3),
    e.MasterPulse(3, True),
    e.Probe(0, 1, 2),
    e.Echo(0, 1, b"\x02"),
    e.AskOffer(0),
    e.Prepared(3, "k" * 40),
    e.Launch(3),
    e.Leaving(3),
    e.Prefetch(0, 5, "p1", (SHARE, ShareRanges((0, 1), ()))),
    e.Prefetched(0, 5, 1 << 33, True, "why"),
    e.Spare(0, "too small", "why"),
]  # fmt: skip

FIXED: list[str] = [
    "c11c02010000000200000000000000000000000102010000000008",
    "c11c030100000002000000000000000300000000000000ffffffff00010102010000000008",
    "c11c030100000002000000000000000300000000000000000000000101",
    "c11c04010000000200000000000000030000000000000007000000010102010000000008",
    "c11c0301000000020000000000000003000000000000000000000000010402010000000008",
    "c11c04010000000200000000000000030000000000000000000000010502010000000008",
    "c11c050100000002000000000000000300000000000000000000000102020200000002",
    "c11c060100000002000000000000000300000000000000070000000104010102010000000008",
    "c11c06010000000200000000000000030000000000000000000000000401",
    "99004001a5302e312e30a27069a27333a26162a5322e392e31b66c6974746c652d656e6469616e204945454520373534",
    "960041a3772d31a16301a5302e312e30",
    "940042a475736564a26e6f",
    "96004301a5302e312e30a27069c4016e",
    "940044d9286b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6bc4016e",
    "930045c40170",
    "940046c40170a0",
    "c11c51070000000100000000000000020000000801000010",
]
"""The bytes of those messages that every version reads, and of those that the native side does, in this order."""


def raw(*items: object) -> bytes:
    return msgspec.msgpack.encode(items)


def padded(data: bytes) -> bytes:
    """The short form ends in zeros, which are left out in this file."""
    return data.ljust(64, b"\0") if data[0] == 0xC1 else data


def flat(protocol: int, tag: int, rest: bytes = b"") -> bytes:
    return padded(bytes((0xC1, protocol, tag)) + rest)


def partial(sender: int = 1, tensor: bytes = bytes(2)) -> bytes:
    return flat(PROTOCOL, PARTIAL, bytes(4 + 8 + 4 + 4 + 4 + 1) + bytes((sender,)) + tensor)


SHUTDOWN = next(tag for tag, cls in TAGS.items() if cls is c.Shutdown)
PARTIAL = next(tag for tag, cls in TAGS.items() if cls is d.Partial)
HIDDEN = next(tag for tag, cls in TAGS.items() if cls is d.Hidden)
TOKEN = next(tag for tag, cls in TAGS.items() if cls is c.Token)
