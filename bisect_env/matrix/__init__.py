"""The matrix file: its schema, its axes and ranges, and the combinations that it stands for."""
