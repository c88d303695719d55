"""Launch a command, break it, resume it, judge it."""
