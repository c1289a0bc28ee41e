"""A model: config, tensors, tokenizer, chat template. Model files are untrusted input. No torch.

`source` finds a model; `presets` knows names and shapes; `folder` reads files. `config` (with `rope` and
`quantisation`) has numbers and pooling; `checkpoint` finds tensors; `spec` has a pack's layout. `tokenizer` (with
`named_tokens`) encodes text. `output` separates reasoning and tool calls with `call_reader` and `held_text`.
`chat_prompt` fits messages to a `template`. A `text_process` runs `text_child`. `hub` pulls models. `gguf/` reads GGUF
files.
"""
