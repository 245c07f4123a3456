"""A place to look: a job's page, its figures for Prometheus and TensorBoard, and what both are made of."""
