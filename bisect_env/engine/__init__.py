"""Carries out a study: locks environments, asks the search, and runs and records trials until it is sure."""
