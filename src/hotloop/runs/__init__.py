"""What a run leaves behind: a folder with spec, metrics, checkpoints and pictures."""
