"""The verbs bench, eval, testbed and trace: one file each, and one for each of bench's own verbs."""
