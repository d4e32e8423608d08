"""The real engine on a simulated device, in virtual time: what a policy or a registry would do, in seconds."""
