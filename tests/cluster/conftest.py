from tests.cluster.alone import alone
from tests.cluster.packs import packs

__all__ = ["alone", "packs"]
