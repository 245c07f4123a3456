"""What both ends of the control plane share: values, their wire form, connections and credentials."""
