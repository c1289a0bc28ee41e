from tests.cluster.packs import packs

__all__ = ["packs"]
