"""OpenAI's own API: responses, or chat completions."""
