"""A computing process: rank and share are given to it by a master.

`process` is its entry, `lifetime` how it ends, `node` what it does; `control_link` is its control thread and
`liveness` what it knows of its peers; `data_plane` joins the tensor plane by `tensor_links`, which `link_survey`
measures and `routing` chooses collectives from; `capacity` measures what this machine computes per second.
"""
