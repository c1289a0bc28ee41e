"""The commands bench, eval, testbed and trace. `flags` has shared flags."""
