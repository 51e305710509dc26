"""The results database in a browser: Datasette, read-only, on the loopback address."""
