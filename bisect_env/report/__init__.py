"""Reports: one pure model of what a study found, and a module for each format."""
