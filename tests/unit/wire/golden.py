"""Every message and its bytes, and the means to write others by hand."""

import msgpack

from tpiedge.wire.control import (
    Accused,
    AskStats,
    Assign,
    Cancel,
    Carried,
    Compile,
    Compiled,
    Connect,
    Embedding,
    Failed,
    Finished,
    Generate,
    Halt,
    Halted,
    Heartbeat,
    Hello,
    Listening,
    Loading,
    Lost,
    PeerPulse,
    PromptScores,
    Pulse,
    Ready,
    Resume,
    Shutdown,
    Stats,
    StepSpans,
    Token,
    WorkerLink,
)
from tpiedge.wire.data import (
    Gathered,
    Hidden,
    LeavePages,
    LinkReport,
    MeasuredLink,
    Partial,
    Reduced,
    Segment,
    Slice,
    StepPlan,
    Survey,
    TableChange,
)
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Capacity,
    Echo,
    Held,
    Launch,
    Leaving,
    MasterPulse,
    NodeEnded,
    Offer,
    Prepare,
    Prepared,
    Preparing,
    Probe,
    Release,
    Spare,
    Spawned,
    Stock,
    Stocked,
)
from tpiedge.wire.files import Fetch, FetchFailed, FileChunk
from tpiedge.wire.join import Challenge, Enrol, Enrolled, Knock, Refused, Reveal, Verdict
from tpiedge.wire.messages import PROTOCOL, TAGS, Message
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling
from tpiedge.wire.tensors import TensorHeader
from tpiedge.wire.weights import Keeping, WeightMemory

GREEDY = Sampling(0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, ((5, -1.5),), 2**64 - 1, 2)
GRAMMAR = Grammar("regex", "a|b", 7, (8, 9))
REQUEST = GenerationRequest(
    "r1", (1, 2, 70000), 16, GREEDY, (2,), False, True, False, (7, 8), "mean", GRAMMAR, "5c09e"
)
ROW = TensorHeader("f32", (1, 2048))

GOLDEN: list[tuple[Message, str]] = [
    (
        StepPlan(
            1,
            2,
            (Segment(0, 5, 1, 6, 1), Segment(1, 0, 300, 300, 0)),
            256,
            301,
            1,
            (TableChange(1, 0, (7, 65536), 0),),
            (3,),
            "mesh",
            "two-shot",
            1 << 16,
            "int8",
        ),
        "9f1501010292950005010601950100cd012ccd012c00cd0100cd012d0191940100c408070000000000010000"
        "c40403000000a46d657368a874776f2d73686f74ce00010000a4696e7438c2",
    ),
    (
        LeavePages(1, 9, (7, 65536), ((0, 2), (2, 3)), ((1, 3),)),
        "9715090109c408070000000000010092920002920203c4080100000003000000",
    ),
    (
        Hidden(1, 2, 0, ROW),
        "c11502010000000200000000000000000000000102010000000008",
    ),
    (
        Partial(1, 2, 3, 0, 0, 1, ROW),
        "c11503010000000200000000000000030000000000000000010102010000000008",
    ),
    (
        Partial(1, 2, 3, 0, 1, 1, None),
        "c1150301000000020000000000000003000000000000000101",
    ),
    (
        Reduced(1, 2, 3, 0, 1, ROW),
        "c115040100000002000000000000000300000000000000010102010000000008",
    ),
    (
        Partial(1, 2, 3, 0, 0, 1, TensorHeader("i32", (1, 2048))),
        "c11503010000000200000000000000030000000000000000010402010000000008",
    ),
    (
        Reduced(1, 2, 3, 0, 1, TensorHeader("i64", (1, 2048))),
        "c115040100000002000000000000000300000000000000010502010000000008",
    ),
    (
        Gathered(1, 2, 3, 0, 1, TensorHeader("bf16", (2, 2))),
        "c1150501000000020000000000000003000000000000000102020200000002",
    ),
    (
        Slice(1, 2, 3, 0, 1, 4, 1, ROW),
        "c1150601000000020000000000000003000000000000000104010102010000000008",
    ),
    (
        Slice(1, 2, 3, 0, 0, 4, 1, None),
        "c115060100000002000000000000000300000000000000000401",
    ),
    (
        Survey(1, 2),
        "9415070102",
    ),
    (
        LinkReport(1, 2, "host", 4, (MeasuredLink(0, 0.25, 1e9), MeasuredLink(1, 0.5, 0.0))),
        "9715080102a4686f737404929300cb3fd0000000000000cb41cdcd65000000009301cb3fe0000000000000cb"
        "0000000000000000",
    ),
    (
        Hello(0, 1, 4242, 1, "0.1.0", 2, "a CPU"),
        "9915200001cd109201a5302e312e3002a56120435055",
    ),
    (
        Assign(
            1,
            1,
            (0, 1),
            (8, 16),
            (0, 3),
            "/p",
            "bf16",
            2,
            65536,
            4096,
            16,
            255,
            ((0, "k" * 40), (1, "")),
            WeightMemory(1 << 30, 4096, "auto", True),
            "ring",
            "bf16",
            "q4",
            ((-14, 3), (-16, -15)),
            True,
            Carried(1, 5, True, ((1, 3),)),
        ),
        "dc001615210101920001920810920003a22f70a46266313602ce00010000cd100010ccff929200d9286b6b6b"
        "6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b9201a094ce4000"
        "0000cd1000a46175746fc3a472696e67a462663136a27134c404f203f0f1c3940105c3c40801000000030000"
        "00",
    ),
    (
        Listening(1, 0, "tcp://127.0.0.1:5"),
        "9515220100b17463703a2f2f3132372e302e302e313a35",
    ),
    (
        Connect(1, ((0, "tcp://127.0.0.1:5"), (1, "tcp://[::1]:6"))),
        "94153201929200b17463703a2f2f3132372e302e302e313a359201ad7463703a2f2f5b3a3a315d3a36",
    ),
    (
        Loading(1, 1, 10, 1 << 33),
        "96152301010acf0000000200000000",
    ),
    (
        Ready(1, 0, 1 << 33, 2.5, "mesh", "two-shot", "why", (WorkerLink(1, 2, 0.5),)),
        "9a15240100cf0000000200000000cb4004000000000000a46d657368a874776f2d73686f74a377687991930102cb3fe0000000000000",
    ),
    (
        Heartbeat(1, 0, 7, 8, 9, (("r1", 70),)),
        "98152501000708099192a2723146",
    ),
    (
        Heartbeat(1, 1, 7, 8, 9),
        "981525010107080990",
    ),
    (
        Pulse(1, (PeerPulse(0, 7, 8, 9, "ready"),)),
        "94152601919500070809a57265616479",
    ),
    (
        Lost(1, 1, "killed by signal 9"),
        "9515270101b26b696c6c6564206279207369676e616c2039",
    ),
    (
        Generate(1, REQUEST),
        "941528019ca27231c40c010000000200000070110100109acb000000000000000000cb3ff0000000000000cb"
        "0000000000000000cb3ff0000000000000cb0000000000000000cb0000000000000000c40c05000000000000"
        "000000f8bfcfffffffffffffffff02c40402000000c2c3c2c4080700000008000000a46d65616e94a5726567"
        "6578a3617c6207c4080800000009000000a53563303965",
    ),
    (
        Token(1, "r1", 0, 70000, ((70000, -0.5), (3, -2.0))),
        "97152901a2723100ce000111709292ce00011170cbbfe00000000000009203cbc000000000000000",
    ),
    (
        PromptScores(1, "r1", 1, (-0.5, -2.0), ((7, -0.25), (9, -1.0))),
        "97153001a272310192cbbfe0000000000000cbc000000000000000c41807000000000000000000d0bf090000"
        "00000000000000f0bf",
    ),
    (
        Embedding(1, "r1", (0.5, -2.0)),
        "95153601a27231c4080000003f000000c0",
    ),
    (
        Compile(1, REQUEST, "g"),
        "951538019ca27231c40c010000000200000070110100109acb000000000000000000cb3ff0000000000000cb"
        "0000000000000000cb3ff0000000000000cb0000000000000000cb0000000000000000c40c05000000000000"
        "000000f8bfcfffffffffffffffff02c40402000000c2c3c2c4080700000008000000a46d65616e94a5726567"
        "6578a3617c6207c4080800000009000000a53563303965a167",
    ),
    (
        Compiled(1, "r1", 0.5),
        "95153901a27231cb3fe0000000000000",
    ),
    (
        Finished(1, "r1", "length", 3, 16, 2, 9, 0.5),
        "9a152a01a27231a66c656e67746803100209cb3fe0000000000000",
    ),
    (
        Failed(1, 0, "", "PeerLost", "node 1 was lost"),
        "98152b0100a0a8506565724c6f7374af6e6f6465203120776173206c6f7374cb0000000000000000",
    ),
    (
        Accused(1, 0, 2, "no"),
        "961531010002a26e6f",
    ),
    (
        Halt(1, 2, ((0, 2), (2, 3)), (0,), ((1, 3),)),
        "971533010292920002920203c40400000000c4080100000003000000",
    ),
    (
        Halted(1, 0, 2, 5, "why"),
        "97153401000205a3776879",
    ),
    (
        Resume(1),
        "93153501",
    ),
    (
        Cancel(1, "r1"),
        "94152c01a27231",
    ),
    (
        StepSpans(1, 2, 7, 3, ((0, 5), (9, 70_000)), ((5, 9),), ()),
        "99153701020703c41000000000050000000900000070110100c4080500000009000000c400",
    ),
    (
        AskStats(1, True),
        "94152d01c3",
    ),
    (
        AskStats(1),
        "94152d01c2",
    ),
    (
        Stats(
            1,
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            0.5,
            0.25,
            0.25,
            0.25,
            0.0,
            0.5,
            9,
            10,
            11,
            7,
            8,
            0.125,
            12,
            13,
            64,
            17,
            20,
            14,
            21,
            22,
        ),
        "dc001e152e0100010203040506cb3fe0000000000000cb3fd0000000000000cb3fd0000000000000cb3fd000"
        "0000000000cb0000000000000000cb3fe0000000000000090a0b0708cb3fc00000000000000c0d4011140e15"
        "16",
    ),
    (
        Shutdown(1),
        "93152f01",
    ),
    (
        Enrol(1, "0.1.0", "pi", "s3", "ab", "2.9.1", "little-endian IEEE 754"),
        "99004001a5302e312e30a27069a27333a26162a5322e392e31b66c6974746c652d656e6469616e204945454520373534",
    ),
    (
        Enrolled("w-1", "c", 1, "0.1.0"),
        "960041a3772d31a16301a5302e312e30",
    ),
    (
        Refused("used", "no"),
        "940042a475736564a26e6f",
    ),
    (
        Knock(1, "0.1.0", "pi", b"n"),
        "96004301a5302e312e30a27069c4016e",
    ),
    (
        Challenge("k" * 40, b"n"),
        "940044d9286b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6bc4016e",
    ),
    (
        Reveal(b"p"),
        "930045c40170",
    ),
    (
        Verdict(b"p", ""),
        "940046c40170a0",
    ),
    (
        Fetch(7, 1, "pppp", "blob", "bbbb", 4096, 1 << 20),
        "9915500701a470707070a4626c6f62a462626262cd1000ce00100000",
    ),
    (
        FileChunk(7, 1, 1 << 33, TensorHeader("u8", (1 << 20,))),
        "c11551070000000100000000000000020000000801000010",
    ),
    (
        FetchFailed(7, 1, "no"),
        "9515520701a26e6f",
    ),
    (
        Offer(
            0,
            "w-0123456789abcdef",
            "pi",
            "0.1.0",
            1,
            7,
            "a CPU",
            "avx2",
            2,
            1 << 32,
            1 << 36,
            Capacity(2, 3e9, 4e9),
            2e8,
            Keeping("none", 2, 3, False),
        ),
        "dc0010156000b2772d30313233343536373839616263646566a27069a5302e312e300107a56120435055a461"
        "76783202cf0000000100000000cf00000010000000009302cb41e65a0bc0000000cb41edcd6500000000cb41"
        "a7d7840000000094a46e6f6e650203c2",
    ),
    (
        Prepare(3, 1, 2, "p1", (8, 16), (0, 3), "int8", 2, 4096, 5, 0.3, 1.5, 60.0),
        "9f1561030102a27031920810920003a4696e743802cd100005cb3fd3333333333333cb3ff8000000000000cb"
        "404e000000000000",
    ),
    (
        Preparing(3, 10, 1 << 33, 1e8),
        "961562030acf0000000200000000cb4197d78400000000",
    ),
    (
        Spawned(3, 1, 4242),
        "9515630301cd1092",
    ),
    (
        NodeEnded(3, "DiskFull", "no room"),
        "95156403a84469736b46756c6ca76e6f20726f6f6d",
    ),
    (
        Release(3),
        "93156503",
    ),
    (
        AgentPulse(3),
        "93156603",
    ),
    (
        MasterPulse(3, "ready", True),
        "95156703a57265616479c3",
    ),
    (
        Probe(0, 1, 2, b"\0\1"),
        "961568000102c4020001",
    ),
    (
        Echo(0, 1, b"\2"),
        "9515690001c40102",
    ),
    (
        AskOffer(0),
        "93156a00",
    ),
    (
        Prepared(3, "k" * 40),
        "94156b03d9286b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b",
    ),
    (
        Launch(3),
        "93156c03",
    ),
    (
        Leaving(3),
        "93156d03",
    ),
    (
        Stock(0, 5, "p1", (((0, 8), (4, 6)), ((8, 8), (0, 0)))),
        "96156f0005a27031929292000892040692920808920000",
    ),
    (
        Stocked(0, 5, 1 << 33, True, "why"),
        "9715700005cf0000000200000000c3a3776879",
    ),
    (
        Held(0, "p1", ((0, 4), (6, 8)), ((2, 3),)),
        "96157100a270319292000492060891920203",
    ),
    (
        Spare(0, "too small", "why"),
        "95156e00a9746f6f20736d616c6ca3776879",
    ),
]


def raw(*items: object) -> bytes:
    return bytes(msgpack.packb(items))


def padded(data: bytes) -> bytes:
    """The short form ends in zeros, which are left out in this file."""
    return data.ljust(64, b"\0") if data[0] == 0xC1 else data


def flat(protocol: int, tag: int, rest: bytes = b"") -> bytes:
    return padded(bytes((0xC1, protocol, tag)) + rest)


def partial(sender: int = 1, tensor: bytes = bytes(2)) -> bytes:
    """A Partial of six integers 0, save its sender."""
    return flat(PROTOCOL, PARTIAL, bytes(4 + 8 + 4 + 4 + 1) + bytes((sender,)) + tensor)


SHUTDOWN = next(tag for tag, cls in TAGS.items() if cls is Shutdown)
PARTIAL = next(tag for tag, cls in TAGS.items() if cls is Partial)
HIDDEN = next(tag for tag, cls in TAGS.items() if cls is Hidden)
TOKEN = next(tag for tag, cls in TAGS.items() if cls is Token)
