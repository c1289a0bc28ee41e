"""The closed union of everything that crosses a socket, with the tag of each.

A tag is never reused; a change of any message's fields raises PROTOCOL.
"""

from tpiedge.wire import control, data, epochs, files, join

PROTOCOL = 21

Message = (
    data.StepPlan
    | data.LeavePages
    | data.Hidden
    | data.Partial
    | data.Reduced
    | data.Gathered
    | data.Slice
    | data.Survey
    | data.LinkReport
    | control.Hello
    | control.Assign
    | control.Listening
    | control.Connect
    | control.Loading
    | control.Ready
    | control.Heartbeat
    | control.Pulse
    | control.Lost
    | control.Generate
    | control.Token
    | control.Finished
    | control.Failed
    | control.Cancel
    | control.AskStats
    | control.Stats
    | control.Shutdown
    | control.PromptScores
    | control.Embedding
    | control.Accused
    | control.Halt
    | control.Halted
    | control.Resume
    | control.StepSpans
    | control.Compile
    | control.Compiled
    | join.Enrol
    | join.Enrolled
    | join.Refused
    | join.Knock
    | join.Challenge
    | join.Reveal
    | join.Verdict
    | files.Fetch
    | files.FileChunk
    | files.FetchFailed
    | epochs.Offer
    | epochs.Prepare
    | epochs.Preparing
    | epochs.Spawned
    | epochs.NodeEnded
    | epochs.Release
    | epochs.AgentPulse
    | epochs.MasterPulse
    | epochs.Probe
    | epochs.Echo
    | epochs.AskOffer
    | epochs.Prepared
    | epochs.Launch
    | epochs.Leaving
    | epochs.Spare
    | epochs.Stock
    | epochs.Stocked
    | epochs.Held
)

TAGS: dict[int, type[Message]] = {
    1: data.StepPlan,
    2: data.Hidden,
    3: data.Partial,
    4: data.Reduced,
    5: data.Gathered,
    6: data.Slice,
    7: data.Survey,
    8: data.LinkReport,
    9: data.LeavePages,
    32: control.Hello,
    33: control.Assign,
    34: control.Listening,
    35: control.Loading,
    36: control.Ready,
    37: control.Heartbeat,
    38: control.Pulse,
    39: control.Lost,
    40: control.Generate,
    41: control.Token,
    42: control.Finished,
    43: control.Failed,
    44: control.Cancel,
    45: control.AskStats,
    46: control.Stats,
    47: control.Shutdown,
    48: control.PromptScores,
    49: control.Accused,
    50: control.Connect,
    51: control.Halt,
    52: control.Halted,
    53: control.Resume,
    54: control.Embedding,
    55: control.StepSpans,
    56: control.Compile,
    57: control.Compiled,
    64: join.Enrol,
    65: join.Enrolled,
    66: join.Refused,
    67: join.Knock,
    68: join.Challenge,
    69: join.Reveal,
    70: join.Verdict,
    80: files.Fetch,
    81: files.FileChunk,
    82: files.FetchFailed,
    96: epochs.Offer,
    97: epochs.Prepare,
    98: epochs.Preparing,
    99: epochs.Spawned,
    100: epochs.NodeEnded,
    101: epochs.Release,
    102: epochs.AgentPulse,
    103: epochs.MasterPulse,
    104: epochs.Probe,
    105: epochs.Echo,
    106: epochs.AskOffer,
    107: epochs.Prepared,
    108: epochs.Launch,
    109: epochs.Leaving,
    110: epochs.Spare,
    111: epochs.Stock,
    112: epochs.Stocked,
    113: epochs.Held,
}
