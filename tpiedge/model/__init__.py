"""A model: config, tensors, tokenizer, chat template. Model files are untrusted input. No torch.

`source` finds a model by the name that a user types; `presets` knows short names and shapes;
`folder` reads a folder's files. `config` (with `rope` and `quantisation`) holds the numbers and the pooling,
`checkpoint` the tensors, `spec` a pack's layout. `tokenizer` (with `named_tokens`) encodes text; `output` separates
reasoning and tool calls (`call_reader`, on `held_text`); `chat_prompt` fits messages to a `template`. Tokenizer and
template work in a `text_process`, which runs `text_child`. `hub` pulls models. `gguf/` reads GGUF files.
"""
