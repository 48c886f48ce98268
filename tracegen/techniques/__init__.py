"""One module a technique; the folder is the registry."""
