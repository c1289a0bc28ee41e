"""`tpiedge bench`: measures this computer. Only numbers of one run can be compared."""

import click

from tpiedge.cli.listing import ListingGroup
from tpiedge.lab.verbs.bench_allreduce import allreduce
from tpiedge.lab.verbs.bench_decode import decode
from tpiedge.lab.verbs.bench_kernels import kernels
from tpiedge.lab.verbs.bench_memory import memory
from tpiedge.lab.verbs.bench_serve import serve


@click.group(cls=ListingGroup)
def bench() -> None:
    """Measure this computer."""


bench.add_command(allreduce)
bench.add_command(decode)
bench.add_command(kernels)
bench.add_command(memory)
bench.add_command(serve)
