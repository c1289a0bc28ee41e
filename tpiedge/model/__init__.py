"""Reads a model's config, tensors, tokenizer and chat template, without torch. Model files are untrusted; errors in
them are UserErrors.

`source` finds a model, `presets` knows aliases and shapes, `folder` reads files. `config` (with `rope` and
`quantisation`) has numbers, `checkpoint` finds tensors, `spec` describes a pack. `tokenizer` (with `named_tokens`)
encodes text. `output` separates reasoning and tool calls with `call_reader` and `held_text`. `chat_prompt` fits
messages to a `template`. A `text_process` runs `text_child`. `hub` pulls models. `gguf/` reads GGUF files.
"""
