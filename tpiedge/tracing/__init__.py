"""What every node did when: recorded in the nodes, joined by their parent, read again by `tpiedge trace`."""
