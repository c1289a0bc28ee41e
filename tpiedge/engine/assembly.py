"""The parts of one node's engine, put together from its share: the same for a process and for a test's thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpiedge.collectives.communicator import Communicator
from tpiedge.collectives.job import Route
from tpiedge.engine.carrying import Carrier
from tpiedge.engine.drawing import Draws
from tpiedge.engine.follower import Follower
from tpiedge.engine.forward import ForwardPass
from tpiedge.engine.grammars import Grammars
from tpiedge.engine.head import Head
from tpiedge.engine.locker import Locker
from tpiedge.engine.meter import Meter, StepRecorder
from tpiedge.engine.runner import Leader, Serving
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.linear import Linear
from tpiedge.kv.cache import KVCache
from tpiedge.memory.weights import Weights
from tpiedge.model.config import ModelConfig
from tpiedge.pack.grids import Exponents
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.wire.control import StepSpans
from tpiedge.wire.fields import KVPrecision
from tpiedge.wire.requests import GenerationRequest


def _nobody(_spans: StepSpans) -> None:
    return


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
    weights: Weights
    communicator: Communicator
    linear: Linear
    cache: KVCache
    meter: Meter
    forward: ForwardPass

    @staticmethod
    def build(
        config: ModelConfig,
        share: NodeShare,
        weights: Weights,
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

    def leader(
        self,
        serving: Serving,
        limits: StepLimits | None = None,
        route: Route | None = None,
        sampler_of: Callable[[GenerationRequest], Draws] | None = None,
        grammars: Grammars | None = None,
        told: Callable[[StepSpans], None] = _nobody,
    ) -> Leader:
        """The loop of rank 0. `route`: of its all-reduces; by the star, as they are, without one. `sampler_of`: draws
        the tokens of a request, other than as it asks. `grammars`: of requests; none are accepted without it.
        `told`: gets what single steps were, and must not block."""
        return Leader(
            self.config,
            self.epoch,
            self.weights,
            self.forward,
            Head(self.config, self.weights, self.linear),
            self.cache,
            self.communicator,
            self.meter,
            limits or StepLimits.of(self.config.hidden_size),
            route or Route(),
            serving,
            self._recorder(told),
            sampler_of,
            grammars,
        )

    def follower(self, carrier: Carrier, told: Callable[[StepSpans], None] = _nobody) -> Follower:
        """The loop of any other rank. `told` as of `leader`."""
        return Follower(self.config, self.forward, self.communicator, carrier, self._recorder(told))

    def _recorder(self, told: Callable[[StepSpans], None]) -> StepRecorder:
        return StepRecorder(self.communicator.rank, self.meter, self.weights, told)

    def carrier(
        self,
        attention: Share,
        locker: Locker | None,
        facts: Sequence[str],
        progress: Callable[[int], None] = lambda _: None,
    ) -> Carrier:
        """For a node with these query heads. The others as in Carrier."""
        heads = kv_share(attention, self.config.group_size)
        return Carrier(self.cache, self.weights, heads, self.communicator, locker, facts, progress)

    def close(self) -> None:
        self.linear.close()
