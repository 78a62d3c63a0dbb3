"""The messages of the gRPC protocol: what `inference.proto` and `model_config.proto` describe, as Python classes.

`*_pb2.py` and `*_pb2.pyi` are made of the descriptions by `python -m gateway.grpc_messages`, and never edited.
"""
