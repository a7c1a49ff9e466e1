"""`train`, from a request to a finished run folder, and what its dry run shows."""
