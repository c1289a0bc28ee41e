"""`tpiedge`: the entry point, and how every error ends a command.

Exit statuses: 0 done; 1 any other failure; 2 bad input; 3 another node failed; 4 this computer lacks memory, disk
space or a working disk; 70 a defect of tpiedge; 130 interrupted.
"""

import errno
import os
import sys
import traceback

import click

from tpiedge import __version__
from tpiedge.cli.bench import bench
from tpiedge.cli.chat_client import chat
from tpiedge.cli.completion import completion
from tpiedge.cli.config import config
from tpiedge.cli.configured import ConfiguredGroup
from tpiedge.cli.demo import demo
from tpiedge.cli.doctor import doctor
from tpiedge.cli.ending import Terminated, honour_signals
from tpiedge.cli.eval import evaluate
from tpiedge.cli.import_gguf import import_gguf
from tpiedge.cli.master import master
from tpiedge.cli.models import ls, rm, show
from tpiedge.cli.nodes import nodes
from tpiedge.cli.pack import pack, unpack
from tpiedge.cli.pull import pull
from tpiedge.cli.run import run
from tpiedge.cli.shards import shards
from tpiedge.cli.testbed import testbed
from tpiedge.cli.token import token
from tpiedge.cli.trace import trace
from tpiedge.cli.worker import worker
from tpiedge.errors import DiskFull, InternalError, TpiedgeError, UserError

__all__ = ["cli", "main"]

_INTERRUPTED = 130


@click.group(cls=ConfiguredGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpiedge")
def cli() -> None:
    """Serve one language model with several weak machines."""


for command in (
    run,
    demo,
    pack,
    unpack,
    import_gguf,
    bench,
    evaluate,
    doctor,
    config,
    completion,
    pull,
    ls,
    show,
    rm,
    shards,
    token,
    master,
    worker,
    chat,
    nodes,
    trace,
    testbed,
):
    cli.add_command(command)


def main() -> None:
    """Run a command; every error is one line on standard error and an exit status."""
    honour_signals()
    sys.exit(_run())


def _run() -> int:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except TpiedgeError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort, Terminated):
        return _fail("interrupted", _INTERRUPTED)
    except OSError as error:
        return _system_failure(error)
    except Exception as error:
        return _defect(error)
    return 0


def _system_failure(error: OSError) -> int:
    """What the verbs leave to be said here: wherever a path of the user is looked at, its reading may be forbidden."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _fail("no space left where the output goes: free some, or write elsewhere", DiskFull.exit_code)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename is not None:
        words = f"cannot use {error.filename}: {error.strerror}: change who may, or give another path"
        return _fail(words, UserError.exit_code)
    return _defect(error)


def _defect(error: Exception) -> int:
    """Ours to mend; where it is, is said on request."""
    wanted = bool(os.environ.get("TPIEDGE_DEBUG"))
    if wanted:
        traceback.print_exception(error)
    hint = "" if wanted else " (TPIEDGE_DEBUG=1 shows where)"
    return _fail(f"a defect of tpiedge: {type(error).__name__}: {error}{hint}", InternalError.exit_code)


def _fail(message: str, status: int) -> int:
    line = " ".join(message.split())
    click.echo(f"tpiedge: {line}", err=True)
    return status
