"""The closed union of everything that crosses a socket, with the tag of each.

A tag is never reused; a change of any message's fields raises PROTOCOL.
"""

from tpiedge.wire import control, data

__all__ = ["PROTOCOL", "TAGS", "Message"]

PROTOCOL = 1

Message = (
    data.StepPlan
    | data.Hidden
    | data.Partial
    | data.Reduced
    | data.Gathered
    | control.Hello
    | control.Assign
    | control.Listening
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
)

TAGS: dict[int, type[Message]] = {
    1: data.StepPlan,
    2: data.Hidden,
    3: data.Partial,
    4: data.Reduced,
    5: data.Gathered,
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
}
