"""Floor 0: what a run is (recipe), what a model is (architecture), what a checkpoint knows of itself (state)."""
