"""Where a writer takes its numbers from: safetensors, GGUF, GPTQ and AWQ. No torch.

`source` and `source_file` read rectangles of tensors; `imported` and `imported_tensor` are what others quantised:
`ggml_tensor` and `ggml_blocks`, `int4_tensor` and `int4_words`, all of them as `codes`; `safetensors_file` is the
format of files.
"""
