"""What both ends of the control plane say, as plain values, and their wire form."""
