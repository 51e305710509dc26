"""Executors: they run trials in this process or on a Dask cluster."""
