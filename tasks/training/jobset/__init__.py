"""The launcher for GKE: a JobSet that is created, watched and deleted through the Kubernetes API."""
