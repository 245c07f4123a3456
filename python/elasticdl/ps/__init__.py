"""Parameter servers: what their processes do beside moving bytes, and how a worker speaks to them."""
