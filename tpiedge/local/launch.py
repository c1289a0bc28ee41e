"""Runs a cluster on this computer, or on a testbed's devices, as its plan says."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tpiedge.launch.bootstrap import Timing
from tpiedge.launch.child import Place
from tpiedge.local.cluster import ClusterSpec, LocalCluster
from tpiedge.local.layout import Layout
from tpiedge.local.prepare import PreparedModel
from tpiedge.planner.solve import Plan
from tpiedge.progress import ByteProgress
from tpiedge.wire.control import Ready


@contextmanager
def launch(
    model: PreparedModel,
    layout: Layout,
    plan: Plan,
    capacity_tokens: int,
    traces: tuple[Path, ...] = (),
    places: tuple[Place, ...] = (),
) -> Iterator[LocalCluster]:
    """The running cluster, which always ends with the block. Raises as LocalCluster.start.

    `traces` is as in ClusterSpec; `places` is given on a testbed that is open already.
    """
    there = layout.testbed
    with nullcontext(places) if places or there is None else there.places() as places:
        spec = ClusterSpec(
            pack=model.pack.path.absolute(),
            shares=plan.shares,
            compute=model.compute,
            threads=layout.threads_per_node,
            capacity_tokens=capacity_tokens,
            weights=tuple(need.weights for need in plan.needs),
            traces=traces,
            places=places,
            collective=layout.collective,
            wire=layout.wire,
            kv=model.kv,
            speculate=layout.speculate,
            timing=Timing() if there is None else there.timing,
        )
        progress = ByteProgress("loading weights")
        cluster = LocalCluster(spec, [need.weight_bytes for need in plan.needs], progress)
        try:
            cluster.start()
        finally:
            progress.finish(0)
        try:
            yield cluster
        finally:
            cluster.close()


def plan_json(
    model: PreparedModel, layout: Layout, plan: Plan, capacity_tokens: int, routing: Ready | None
) -> dict[str, object]:
    """The plan as `--json` prints it. `routing` is rank 0's Ready, which names the collectives."""
    return {
        **model.described(),
        "collective": (routing.collective if routing else "") or "none",
        "bulk_collective": (routing.bulk_collective if routing else "") or "none",
        "collective_why": routing.why if routing else "",
        "wire": layout.wire,
        "context": capacity_tokens,
        "threads": layout.threads_per_node,
        "shares": [
            {
                "attention": [share.attention.start, share.attention.stop],
                "ffn": [share.ffn.start, share.ffn.stop],
                "weight_bytes": need.weight_bytes,
                "kv_bytes": need.kv_bytes,
                "predicted_bytes": need.total_bytes,
            }
            for share, need in zip(plan.shares, plan.needs, strict=True)
        ],
    }
