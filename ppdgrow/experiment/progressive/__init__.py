"""Growth with a decision at its end: when to grow, what to try, which arm becomes the run."""
