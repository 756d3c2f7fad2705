"""The HTTP surface: OpenAI's endpoints on FastAPI, in the frontend process."""
