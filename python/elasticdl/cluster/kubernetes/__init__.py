"""Jobs on Kubernetes: the API, the objects of a job, pods, rights and certificates."""
