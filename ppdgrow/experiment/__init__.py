"""Floor 4: the four operations. Each takes plain values, leaves files, and returns what a command prints."""
