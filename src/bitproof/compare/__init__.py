"""Two trails: align them, find the first divergence, name the cause."""
