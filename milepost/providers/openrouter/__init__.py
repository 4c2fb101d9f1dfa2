"""OpenRouter: chat completions with routing, reasoning and costs of its own."""
