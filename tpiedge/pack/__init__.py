"""The on-disk form of a model: layout, writer, reader, hashes. No torch."""
