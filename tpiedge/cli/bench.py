"""`tpiedge bench`: what a cluster on this computer reaches, in numbers that can be compared within one run."""

import click

from tpiedge.cli.bench_allreduce import allreduce
from tpiedge.cli.bench_decode import decode
from tpiedge.cli.bench_kernels import kernels
from tpiedge.cli.bench_memory import memory, memory_run
from tpiedge.cli.bench_serve import serve
from tpiedge.cli.listing import ListingGroup

__all__ = ["bench"]


@click.group(cls=ListingGroup)
def bench() -> None:
    """Measure this computer."""


bench.add_command(allreduce)
bench.add_command(decode)
bench.add_command(kernels)
bench.add_command(memory)
bench.add_command(memory_run)
bench.add_command(serve)
