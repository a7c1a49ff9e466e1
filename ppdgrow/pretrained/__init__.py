"""Models of Transformers: folders that others made, grown by pairs or by plain layers. Needs the extra `hf`.

May import checkpoint, surgery, engine, training and all below.
"""
