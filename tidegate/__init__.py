"""The client of tidegate: submit requests, wait for answers. Needs an HTTP client and nothing of the server."""
