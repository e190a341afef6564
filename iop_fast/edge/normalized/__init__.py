"""Requests for providers that take no tunnel: from OpenAI's JSON to a normalized run, and from its events back."""
