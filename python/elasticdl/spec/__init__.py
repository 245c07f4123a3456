"""What a job is asked to do: settings, their edge, the model file's shape, and the place where a job lies."""
