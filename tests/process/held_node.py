"""A node that can be held while it lives: `python -m tests.process.held_node` instead of `tpiedge.node.fork_server`.

No step begins while the file named by NODE_FAULT_FILE exists. Heartbeats go on, so the node counts as alive; the others
wait for it inside an all-reduce.
"""

import os
import sys
from pathlib import Path

from torch import Tensor

from tests.process.faulty import NODE_FAULT_FILE, wait_where_held
from tpiedge.engine.forward import Engine
from tpiedge.node.fork_server import main
from tpiedge.wire.data import StepPlan


def _hold(path: Path) -> None:
    run = Engine.run

    def run_later(forward: Engine, x_TH: Tensor, plan: StepPlan, inputs_TI: Tensor | None = None) -> None:
        wait_where_held(path)
        run(forward, x_TH, plan, inputs_TI)

    Engine.run = run_later


if __name__ == "__main__":
    _hold(Path(os.environ[NODE_FAULT_FILE]))
    sys.exit(main())
