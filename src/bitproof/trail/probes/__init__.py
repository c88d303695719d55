"""Probes: what looks at PyTorch, one subject a file.

Each has ``attach(recorder)``, which returns the function that takes the probe away again.
"""
