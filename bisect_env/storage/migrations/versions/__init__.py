"""The revisions; a released one never changes."""
