"""Checks of `tpiedge doctor`, which change nothing."""
