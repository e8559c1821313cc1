"""What we are measured against, each as its own users would write it."""
