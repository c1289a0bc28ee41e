"""A node that dies of one prompt: `python -m tests.process.poisoned_node`, in place of `tpiedge.node.process`.

It is killed by SIGSEGV, as where a kernel computes what nobody tried, in a step that reaches the position POISON of any
sequence, and leaves a line with the number of the sequences in that step in the file that NODE_FAULT_FILE names. No
step begins while the file `gate_of` that one is there.
"""

import os
import signal
import sys
import time
from pathlib import Path

from torch import Tensor

from tests.process.faulty import NODE_FAULT_FILE, POISON, gate_of
from tpiedge.engine.forward import ForwardPass
from tpiedge.node.process import main
from tpiedge.wire.data import StepPlan

_POLL_S = 0.01


def _poison(path: Path) -> None:
    run, gate = ForwardPass.run, gate_of(path)

    def run_or_die(forward: ForwardPass, x_TH: Tensor, plan: StepPlan) -> None:
        while gate.exists():
            time.sleep(_POLL_S)
        if any(one.start + one.length >= POISON for one in plan.segments):
            with path.open("a") as file:
                file.write(f"{len(plan.segments)}\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        run(forward, x_TH, plan)

    ForwardPass.run = run_or_die


if __name__ == "__main__":
    _poison(Path(os.environ[NODE_FAULT_FILE]))
    sys.exit(main())
