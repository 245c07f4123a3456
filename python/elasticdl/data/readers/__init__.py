"""Where records come from: files, their indexes, and readers that users write."""
