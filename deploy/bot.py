"""The agent that compose.yml serves. Replace it with yours; this one answers every message with the same words."""

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(custom_output_text="Hello from a worker."), name="bot")
