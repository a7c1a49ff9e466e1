"""What a person or a checkpoint says: recipe, architecture, kinds and families, and how values are read and explained.

May import errors and atomic. No torch.
"""
