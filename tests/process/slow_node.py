"""A node whose steps take long: `python -m tests.process.slow_node`, in place of `tpiedge.node.process`.

Each step takes at least STEP_S while the file is there that POISON_FILE names: an answer lasts, whatever the speed of
the machine and whatever else runs on it, and all else of the node is as quick as ever.
"""

import os
import sys
import time
from pathlib import Path

from torch import Tensor

from tests.process.faulty import POISON_FILE, STEP_S
from tpiedge.engine.forward import ForwardPass
from tpiedge.node.process import main
from tpiedge.wire.data import StepPlan


def _slow(path: Path) -> None:
    run = ForwardPass.run

    def run_later(forward: ForwardPass, x_TH: Tensor, plan: StepPlan) -> None:
        if path.exists():
            time.sleep(STEP_S)
        run(forward, x_TH, plan)

    ForwardPass.run = run_later


if __name__ == "__main__":
    _slow(Path(os.environ[POISON_FILE]))
    sys.exit(main())
