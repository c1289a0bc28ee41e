"""The parts of one node's engine, put together from its share: the same for a process and for a test's thread."""

from dataclasses import dataclass

from tpiedge.collectives.communicator import Communicator
from tpiedge.engine.forward import ForwardPass
from tpiedge.engine.meter import Meter
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kv.cache import KVCache
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.config import ModelConfig
from tpiedge.pack.grids import Exponents
from tpiedge.pack.share import NodeShare, kv_share
from tpiedge.wire.fields import KVPrecision


def kv_cache(
    config: ModelConfig,
    share: NodeShare,
    kv: KVPrecision,
    slots: int,
    capacity_tokens: int,
) -> KVCache:
    """For the node's own KV heads, kept as `kv`. Raises OutOfMemory."""
    return KVCache(
        num_layers=config.num_layers,
        kv_heads=len(kv_share(share.attention, config.group_size)),
        head_dim=config.head_dim,
        slots=slots,
        capacity=capacity_tokens,
        precision=kv,
    )


@dataclass(frozen=True)
class Engine:
    """One node's computation. `close` ends the kernels' threads; weights and communicator are the caller's."""

    config: ModelConfig
    epoch: int
    weights: NodeWeights
    communicator: Communicator
    linear: Linear
    cache: KVCache
    meter: Meter
    forward: ForwardPass

    @staticmethod
    def build(
        config: ModelConfig,
        share: NodeShare,
        weights: NodeWeights,
        cache: KVCache,
        communicator: Communicator,
        *,
        epoch: int,
        compute: str,
        threads: int,
        meter: Meter,
        grids: Exponents,
    ) -> "Engine":
        """`grids`: the exponents of a quantised model, which all nodes have alike."""
        linear = Linear.create(Arithmetic(compute), threads)
        forward = ForwardPass(config, share, weights, cache, communicator, linear, meter, grids)
        return Engine(config, epoch, weights, communicator, linear, cache, meter, forward)

    def close(self) -> None:
        self.linear.close()
