"""A computing process: rank and share are given to it by a master.

`process` is its entry and how it ends, `fork_server` forks it, `node` is what it does; `control_link` is its control
thread and what it knows of its peers; `data_plane` joins the tensor plane, whose links `link_survey` measures;
`capacity` measures what this machine computes per second.
"""
