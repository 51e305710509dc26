"""Runs trials in containers, with podman or docker."""
