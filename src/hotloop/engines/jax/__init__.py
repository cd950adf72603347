"""The JAX/XLA engine."""
