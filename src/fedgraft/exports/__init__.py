"""A client's own model, taken out of a run: written for use without fedgraft, asked and judged on new files."""
