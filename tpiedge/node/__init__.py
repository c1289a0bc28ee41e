"""The computing process: `process` runs a `node`, `fork_server` forks it. `control_link` is its control thread and its
view of peers, `data_plane` joins the tensor plane, `link_survey` measures its links, `capacity` the machine.
"""
