"""The connections of the control plane: streams, clients, credentials, and what each role may say."""
