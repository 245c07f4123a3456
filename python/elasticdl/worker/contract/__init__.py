"""What a framework implements."""
