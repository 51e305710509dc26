"""What writes files of this repository from their sources; not part of the package."""
