"""What has nothing to do with learning: errors, files, names and their registry, text and statistics."""
