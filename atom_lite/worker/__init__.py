"""The data plane of one stage: runs step plans through the model's layers; decides nothing."""
