"""Data parallelism: gradients of replicas summed, and ZeRO's shards of state, unit by unit (DESIGN section 4.1)."""
