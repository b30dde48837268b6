"""Look at runs: one HTML file, pictures for a terminal, figures for a paper, and a view of a run that still goes on."""
