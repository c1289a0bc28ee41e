"""What a model is: config, tensors, tokenizer, chat template. Model files are untrusted input. No torch.

`source` finds a model by the name that a user types, `aliases` and `presets` know short names and shapes, `folder` and
`fields` read a folder's files. `config` (with `rope`, for which `elementary` has logarithms and powers, and
`quantisation`) holds the numbers, `checkpoint` (with `safetensors_header` and `int4_checkpoint`) the tensors, `spec`
what a pack is written from, `pooling` how embeddings are made. Text: `tokenizer` (with
`named_tokens` and `end_tokens`), `text`, `speech` (thoughts, and calls of tools, by `call_reader` in one of the
`call_forms`, with `held_text` and `json_scan`), and `chat_prompt`, which hands messages over to a `template` by its
`template_habits`. Tokenizer and template work in a `text_process`, which is a `text_child`. `gguf/` and `hub/` are
packages of their own.
"""
