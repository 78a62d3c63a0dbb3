"""Backends: one module each, which alone imports its library."""
