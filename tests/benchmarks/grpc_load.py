"""Placeholder until the gRPC side is there."""
