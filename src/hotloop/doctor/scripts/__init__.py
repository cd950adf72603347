"""The doctor for anyone's training script, unchanged."""
