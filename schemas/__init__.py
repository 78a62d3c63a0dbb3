"""The contract that gateway and workers share: messages, codec, topic names, errors, deadlines.

Light on purpose: msgspec and the standard library, importable in milliseconds. Knows no Kafka client, no object
store and no ML library; what it says about records are names and bytes.
"""
