"""A node that dies of one prompt: `python -m tests.process.poisoned_node`, in place of `tpiedge.node.process`.

It is killed by SIGSEGV, as where a kernel computes what nobody tried, in a step that reaches the position POISON of any
sequence, and leaves a line with the number of the sequences in that step in the file that NODE_FAULT_FILE names.
"""

import os
import signal
import sys
from pathlib import Path

from torch import Tensor

from tests.process.faulty import NODE_FAULT_FILE, POISON
from tpiedge.engine.forward import ForwardPass
from tpiedge.node.process import main
from tpiedge.wire.data import StepPlan


def _poison(path: Path) -> None:
    run = ForwardPass.run

    def run_or_die(forward: ForwardPass, x_TH: Tensor, plan: StepPlan) -> None:
        if any(one.start + one.length >= POISON for one in plan.segments):
            with path.open("a") as file:
                file.write(f"{len(plan.segments)}\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        run(forward, x_TH, plan)

    ForwardPass.run = run_or_die


if __name__ == "__main__":
    _poison(Path(os.environ[NODE_FAULT_FILE]))
    sys.exit(main())
