"""Models of Transformers: folders that others made, grown by pairs or by plain layers, trained. Needs the extra `hf`.

May import checkpoint, optim and all below.
"""
