"""`tpiedge`: the entry point, and how every error ends a command.

Exit statuses: 0 done; 1 any other failure; 2 bad input; 3 another node failed; 4 this computer lacks memory, disk
space or a working disk; 70 a defect of tpiedge; 130 interrupted.
"""

import errno
import os
import subprocess
import sys
import traceback
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from tpiedge import __version__
from tpiedge.cli.configured import ConfiguredGroup
from tpiedge.cli.interrupts import Terminated, honour_signals
from tpiedge.cli.types import usage_words
from tpiedge.errors import DiskFull, InternalError, TpiedgeError, UserError
from tpiedge.host.process_limits import (
    LEAST,
    check_address_space,
    raise_address_limit,
    raise_descriptor_limit,
)

_INTERRUPTED = 130
_GIT_S = 2.0
VERBS = (
    ("run", "tpiedge.cli.run:run", "Answer a prompt with a cluster of local processes."),
    (
        "demo",
        "tpiedge.cli.run:demo",
        "Watch three nodes of unequal shares answer together with the bundled model.",
    ),
    (
        "pack",
        "tpiedge.cli.pack:pack",
        "Write MODEL (or a random model of a real shape) in the form that nodes read.",
    ),
    (
        "unpack",
        "tpiedge.cli.pack:unpack",
        "Write the pack MODEL back as a Hugging Face checkpoint in the new folder OUT, bit for bit; q8 and q4 as f32.",
    ),
    (
        "import-gguf",
        "tpiedge.cli.pack:import_gguf",
        "Write the Llama or Qwen model in the GGUF FILE in the form that nodes read, with its tokenizer.",
    ),
    ("bench", "tpiedge.lab.verbs.bench:bench", "Measure this computer."),
    ("eval", "tpiedge.lab.verbs.eval:evaluate", "Measure a model's quality with a text."),
    (
        "doctor",
        "tpiedge.cli.doctor:doctor",
        "Check this computer and its network, within ten seconds; nothing is changed.",
    ),
    ("config", "tpiedge.cli.config:config", "Show and check settings."),
    (
        "completion",
        "tpiedge.cli.main:completion",
        "Print what SHELL needs: `source <(tpiedge completion bash)`.",
    ),
    (
        "pull",
        "tpiedge.cli.models:pull",
        "Fetch MODEL from the hub: org/name, org/name@revision, or an alias (`tpiedge ls --all`).",
    ),
    (
        "ls",
        "tpiedge.cli.models:ls",
        "List the models that were pulled and the packs in the cache, by the names that every verb takes.",
    ),
    ("show", "tpiedge.cli.models:show", "Say what is known of MODEL: shape, size, terms, where it lies."),
    ("rm", "tpiedge.cli.models:rm", "Delete MODEL from the cache: what was pulled, and its packs."),
    (
        "shards",
        "tpiedge.cli.models:shards",
        "The parts of models that this computer keeps as a worker: list, remove, limit.",
    ),
    ("token", "tpiedge.cli.token:token", "Let new workers in: make, list and revoke tokens."),
    ("master", "tpiedge.cli.master:master", "Serve MODEL with this machine and the workers that join it."),
    ("worker", "tpiedge.cli.worker:worker", "Join a master and compute a share of its model."),
    ("chat", "tpiedge.cli.chat_client:chat", "Talk to a running master."),
    (
        "nodes",
        "tpiedge.cli.nodes:nodes",
        "Show who has which share of the model, and why; let workers in, drain them, try them again, shut them out.",
    ),
    (
        "top",
        "tpiedge.cli.top:top",
        "Show what the machines of the running master do, anew every second.",
    ),
    (
        "trace",
        "tpiedge.lab.verbs.trace:trace",
        "Show what the nodes did when, from a FILE that `tpiedge run --trace FILE` wrote.",
    ),
    (
        "testbed",
        "tpiedge.lab.verbs.testbed:testbed",
        "Emulate several devices on this computer: their networks, processors and memory.",
    ),
)
"""Name, import path, and the line of --help, which imports none of them. The order is that of `tpiedge config show`."""


@click.group(cls=ConfiguredGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: _print_version(context) if wanted else None,
    help="Show the version, and of a checkout the commit.",
)
def cli() -> None:
    """Serve one language model with several weak machines."""


for _verb in VERBS:
    cli.add_late(*_verb)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what SHELL needs: `source <(tpiedge completion bash)`."""
    kind = get_completion_class(shell)
    if kind is None:
        raise InternalError(f"click has no completion for {shell}")
    # click reads this variable: every verb of the command completes through it.
    click.echo(kind(ctx.find_root().command, {}, "tpiedge", "_TPIEDGE_COMPLETE").source())


def _print_version(context: click.Context) -> None:
    click.echo(f"tpiedge, version {__version__}{_commit()}")
    context.exit()


def _commit() -> str:
    """Of a checkout, in brackets; empty for an installation, and where git does not answer."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f" ({found.stdout.strip()})" if found.returncode == 0 else ""


def main() -> None:
    """Run a command; every error is one line on standard error and an exit status."""
    honour_signals()
    raise_descriptor_limit()
    raise_address_limit()
    sys.exit(_run())


def _run() -> int:
    try:
        check_address_space(LEAST)  # before anything large is imported
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return 2
    except click.ClickException as error:
        return _fail(usage_words(error), error.exit_code)
    except TpiedgeError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort, Terminated) as ended:
        # click makes an Abort of a KeyboardInterrupt, whose words may say more.
        return _fail(str(ended.__cause__ or "") or "interrupted", _INTERRUPTED)
    except OSError as error:
        return _system_failure(error)
    except Exception as error:
        return _defect(error)
    return 0


def _system_failure(error: OSError) -> int:
    """What the verbs leave to be said here: wherever a path of the user is looked at, its reading may be forbidden."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        words = "no space left where the output goes: free some, or write elsewhere"
        if error.filename is not None:
            words = str(DiskFull.at(Path(os.fsdecode(error.filename))))
        return _fail(words, DiskFull.exit_code)
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
