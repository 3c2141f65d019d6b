"""What every measure needs: processes to start, rounds to take in turn, tables to show."""
