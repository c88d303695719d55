"""What determinism costs on a training command: the same steps with and without, taken in turn."""
