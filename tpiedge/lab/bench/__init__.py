"""The measurements of `tpiedge bench`."""
