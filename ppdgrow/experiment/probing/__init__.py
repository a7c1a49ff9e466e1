"""What the pairs and blocks of a checkpoint do: measured, held against their bounds, shown and drawn."""
