"""The verbs bench (with a file for each verb of bench), eval, testbed and trace; `flags` has shared flags."""
