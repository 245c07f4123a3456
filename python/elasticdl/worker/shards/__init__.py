"""Programs that process records once, task by task."""
