"""Floor 3: the training loop and evaluation. Nothing here knows of growth."""
