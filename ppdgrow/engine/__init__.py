"""The training loop and evaluation of any model on any batches. Nothing here knows of growth or of run folders.

May import optim, config and the floors below.
"""
