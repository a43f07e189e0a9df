"""The pytest plugin. It imports nothing of vccl until a test asks for ranks."""
