"""What ranks did against what the ledger says they do: recordings compared with expected events. No torch."""
