"""Runs a node: `python -m tpiedge.node.process`. A forked node calls `run` directly.

The first line on standard input is the bootstrap. The log, a message to the master and the exit status tell why the
node ended.
"""

import gc
import os
import sys
import traceback
import types
from typing import TYPE_CHECKING

from tpiedge.errors import Cancelled, InternalError, OutOfMemory, PeerLost, TpiedgeError
from tpiedge.launch.bootstrap import NodeBootstrap, from_line
from tpiedge.lifeline import guard, raise_oom_score
from tpiedge.supervision import Supervisor

if TYPE_CHECKING:
    from tpiedge.node.node import Node

_META_KERNELS = "torch._meta_registrations"


def main() -> int:
    # A node can be replaced, the agent or master beside it cannot.
    raise_oom_score(500)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 143  # as by SIGTERM: the parent is gone
    guard(lambda: os._exit(143))  # before the imports, which take long
    import_engine()
    return run(from_line(line, NodeBootstrap))


def import_engine() -> None:
    # Leaves out kernels for tensors without data, which only torch's compilers use: a fifth of the import's time, and
    # 18 MB. A torch without a module of this name is not changed.
    sys.modules.setdefault(_META_KERNELS, types.ModuleType(_META_KERNELS))
    gc.disable()
    try:
        import tpiedge.node.node  # noqa: F401
        from tpiedge.kernels.library import Pool
        from tpiedge.kernels.shared_library import kernel_library

        if (library := kernel_library()) is not None:
            Pool(library, 1).close()  # measures, for all forks, what suits the processor (native/fetching.h)
    finally:
        gc.freeze()  # shortens later garbage collections
        gc.enable()


def run(bootstrap: NodeBootstrap) -> int:
    """Runs a node until it ends. Returns its exit status."""
    from tpiedge.node.node import Node

    with Supervisor(_end_at_once):
        node = Node(bootstrap)
        try:
            node.run()
        except Cancelled:
            return 0
        except TpiedgeError as error:
            return _end(node, error)
        except MemoryError:
            why = f"node {bootstrap.rank} ran out of memory: give it a smaller share"
            return _end(node, OutOfMemory(why))
        except RuntimeError as error:
            if "allocate memory" in str(error):  # torch has no class of its own for the CPU
                return _end(node, OutOfMemory(f"node {bootstrap.rank} ran out of memory: {error}"))
            raise
        finally:
            node.close()
    return 0


def _end_at_once(error: InternalError) -> None:
    sys.stderr.write(f"{error}\n")
    os._exit(error.exit_code)  # the engine thread may wait for the failed one


def _end(node: "Node", error: TpiedgeError) -> int:
    # Written first: the master's answer to the report may be the end of this process.
    if not isinstance(error, PeerLost):
        traceback.print_exception(error)
    sys.stderr.write(f"{error}\n")
    node.report(error)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
