"""The ledger: what one rank does in one step, as rows of counts. Prices come later (compute.py, collectives/price.py)."""
