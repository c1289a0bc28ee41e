"""A whole cluster on this computer, for one command. No torch.

`catalogue` finds what a model's name means, among packs with names (`pack_label`) and text files (`text_folder`);
`packing` and `gguf_import` make packs; `prepare` opens a model's pack, `launch` plans for it and starts a `cluster`,
whose control thread is `control`; `answer` turns its events into text, `usual_sampling` reads how a model's makers
have tokens drawn and `usual_context` how long its context may be; `paths` names the folders of caches and state.
"""
