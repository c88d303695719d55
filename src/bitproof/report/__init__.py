"""A verdict as terminal text, JSON or HTML."""
