"""Figures as PNG files: the `timeline` of a trace with its `step_strip`, the `roofline` of kernels. The only
package that draws.
"""
