"""From one machine to many: `fedgraft deploy` and its demonstration."""
