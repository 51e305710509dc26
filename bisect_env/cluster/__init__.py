"""Where trials run: in this process, or on a Dask cluster."""
