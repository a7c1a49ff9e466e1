"""Floor 1: dumb algebra. Branches, couplings and the models built from them; nothing here knows of growth."""
