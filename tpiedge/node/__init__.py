"""The computing process. `process` runs a `node`; `fork_server` forks the process. `control_link` has the node's
control thread and its view of peers. `data_plane` joins the tensor plane. `link_survey` measures links. `capacity`
measures the machine."""
