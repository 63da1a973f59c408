"""The four inputs, as plain data: model, cluster, workload, layout. Nothing here computes a cost."""
