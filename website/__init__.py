"""The site: pages from docs/, reference pages from the code, tutorials as notebooks that were run."""
