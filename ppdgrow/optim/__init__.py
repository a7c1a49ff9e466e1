"""Floor 2: the optimizer over named parameters, and the learning rate as a pure function of the step."""
