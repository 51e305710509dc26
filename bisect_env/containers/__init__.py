"""The container engine of this host: found, asked, and told to run a trial inside an image."""
