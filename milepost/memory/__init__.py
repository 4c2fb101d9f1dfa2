"""What memory is kept in: files of one host, or the ledger's database."""
