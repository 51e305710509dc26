"""The answer, told: one pure model of a study's report, and one file for each format."""
