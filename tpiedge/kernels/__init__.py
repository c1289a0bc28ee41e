"""Computes in torch and C++."""
