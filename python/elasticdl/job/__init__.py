"""Jobs from end to end: submitting, launching, showing, and the processes' entry points."""
