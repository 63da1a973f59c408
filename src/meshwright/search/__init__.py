"""The search over all legal layouts: what there is, what it costs, what wins and why."""
