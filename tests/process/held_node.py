"""A node that halts in one prompt: `python -m tests.process.held_node`, in place of `tpiedge.node.process`.

A step that reaches the position POISON of any sequence does not begin while the file is there that POISON_FILE names.
"""

import os
import sys
import time
from pathlib import Path

from torch import Tensor

from tests.process.faulty import POISON, POISON_FILE
from tpiedge.engine.forward import ForwardPass
from tpiedge.node.process import main
from tpiedge.wire.data import StepPlan

_POLL_S = 0.01


def _hold(path: Path) -> None:
    run = ForwardPass.run

    def run_later(forward: ForwardPass, x_TH: Tensor, plan: StepPlan) -> None:
        while any(one.start + one.length >= POISON for one in plan.segments) and path.exists():
            time.sleep(_POLL_S)
        run(forward, x_TH, plan)

    ForwardPass.run = run_later


if __name__ == "__main__":
    _hold(Path(os.environ[POISON_FILE]))
    sys.exit(main())
