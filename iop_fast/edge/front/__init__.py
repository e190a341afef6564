"""HTTP/1.1 and 1.0 between clients and a `Service`; knows nothing of models, queues or Nodes."""
