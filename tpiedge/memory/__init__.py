"""Where weights live while a node computes: arena, disk reader, resident blocks."""
