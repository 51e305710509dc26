"""The answers that are stored and reported: models that the engine writes, and storage and reports read."""
