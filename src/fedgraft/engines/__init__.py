"""Where the clients are: on this machine, or on several."""
