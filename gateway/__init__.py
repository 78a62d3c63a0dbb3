"""The gateway: protocol in, record out, reply back. Thin; never imports an ML library, nor anything of workers."""
