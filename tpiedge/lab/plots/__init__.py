"""Figures as PNG files: the `timeline` of a trace, the `roofline` of kernels. The only package that draws."""
