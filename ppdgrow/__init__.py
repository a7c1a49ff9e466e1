"""ppdgrow: grow neural networks in depth with identity-cancelling pairs."""

__version__ = "0.1.0"
