"""The loop of a node that is not rank 0: it waits for plans, and sees no token."""

import torch

from tpiedge.collectives.communicator import Communicator
from tpiedge.engine.carrying import Carrier
from tpiedge.engine.forward import ForwardPass
from tpiedge.engine.meter import StepRecorder
from tpiedge.engine.overlap import StepCancelled
from tpiedge.model.config import ModelConfig
from tpiedge.wire.data import LeavePages


class Follower:
    """Any other rank: takes steps until the cluster ends, and leaves what `carrier` can."""

    def __init__(
        self,
        config: ModelConfig,
        forward: ForwardPass,
        communicator: Communicator,
        carrier: Carrier,
        recorder: StepRecorder,
    ) -> None:
        self._hidden_size = config.hidden_size
        self._recorder = recorder
        self._forward = forward
        self._communicator = communicator
        self._carrier = carrier

    def run(self) -> None:
        """Never returns; ends with Cancelled at shutdown, or PeerLost, ProtocolError."""
        while True:
            self.run_step()

    def run_step(self) -> None:
        """Wait for a plan, then take the step."""
        plan = self._communicator.next_plan()
        if isinstance(plan, LeavePages):
            self._carrier.leave(plan)
            return
        self._carrier.discard()
        x_TH = torch.empty(plan.tokens, self._hidden_size)
        self._recorder.begin(plan)
        # The cancelled step's hidden states are dropped with it; the next plan says where the sequences stand.
        try:
            self._forward.run(x_TH, plan)
        except StepCancelled:
            self._recorder.drop()
            return
        self._recorder.end()
