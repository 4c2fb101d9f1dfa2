"""Configuration: `milepost.yaml`, environment and defaults as checked values. Nothing else reads the environment."""
