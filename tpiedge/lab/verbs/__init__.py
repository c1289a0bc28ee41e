"""The verbs bench, eval, testbed and trace: a file each, one for each verb of bench, and `flags` that several have."""
