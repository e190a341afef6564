"""Spans of requests, made after the fact and sent by OpenTelemetry's SDK; `export` alone imports it."""
