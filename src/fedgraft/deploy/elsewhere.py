"""What a federation decides otherwise than a run on one machine. Help reads this, so it imports nothing."""

ELSEWHERE = {
    "dataset": "name the data under [data]",
    "data_dir": "each site names its own data",
    "clients": "the clients are the sites",
    "partition": "the data lie at the sites already",
    "engine": "a federation runs on Flower",
    "workers": "each site trains its own client",
    "device": "each site names its own device",
    "together": "each site trains its own client",
    "deadline": "it is one of the [rules]",
    "retries": "a site that fails is absent, and asked again in the next round",
    "failed_client": "a site that fails is absent",
    "site_column": "each site has its own file",
    "global_test": "test samples do not leave their site",
    "hold_out": "its sites are all there to take part",
    "task": "name it under [data]",
    "checkpoint_every": "a federation is saved after every round",
}
"""Settings of a run on one machine that a federation decides otherwise."""
