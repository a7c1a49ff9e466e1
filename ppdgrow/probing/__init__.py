"""`probe`: what the pairs and blocks of a checkpoint do, measured, held against their bounds, shown and drawn.

May import training and all below; not comparison.
"""
