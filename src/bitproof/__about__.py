"""The version, read by the build and by `bitproof --version`."""

__version__ = "0.1.0"
