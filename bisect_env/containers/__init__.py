"""Runs trials inside images with the container engine of this host."""
