"""What is watched in the training process beyond what the recorder sees, one subject a file.

Each has ``attach(watch)``, for the rest of the process's life.
"""
