"""What the ranks of a run did, as plain data: the schema, its reader and writer, and checks across ranks. No torch."""
