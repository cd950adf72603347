"""Acting and learning with PyTorch."""
