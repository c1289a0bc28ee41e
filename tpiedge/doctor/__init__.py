"""Checks of `tpiedge doctor`, which change nothing. `computer` checks machine and software. `network` checks the
network and a master."""
