"""From tensors to a pack on disk, and back to a checkpoint. No torch.

`child` and `parent`: a process of its own. `writer` writes blobs by `blob_writer` and `panel_writer` into `blob_sink`,
all of it in the folder of `target`; `quality` keeps what quantising cost; `export` writes
safetensors.
"""
