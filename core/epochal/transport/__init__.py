"""What every process that talks over ZeroMQ needs: sockets, what memory it keeps, and how it ends what it began."""
