"""The whole product on one machine: a real single-node Kafka, gateway and workers as child processes."""
