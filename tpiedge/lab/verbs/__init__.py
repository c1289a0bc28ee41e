"""The verbs bench, eval, testbed and trace; `flags` has shared flags."""
