"""Reads and writes packs, the on-disk form of models, without torch."""
