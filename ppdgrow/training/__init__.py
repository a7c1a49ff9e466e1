"""One run folder from start to end: what it is to do, its start, its trainer, and the dry run.

May import engine, surgery, checkpoint, optim, data, nn and all below.
"""
