"""`compare`: what arms are worth, from their run folders: figures, criteria, a verdict, tables, pictures and pages.

May import growth, training and all below; not probing.
"""
