"""The computing process. `fork_server` forks the process. `process` runs a `node`. `control_link` runs the node's
control thread and watches peers. `data_plane` joins the tensor plane. `link_survey` measures links. `capacity`
measures the machine."""
