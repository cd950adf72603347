"""Trainings that are slow for one known reason, as scripts of different styles: for the doctor to find."""
