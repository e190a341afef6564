"""What went over a link: plain counters that outlive its sessions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Messages, their bytes and their frames, in both directions. The writer of a session counts what it sends, its
    reader what came."""

    sent_messages: int = 0
    sent_bytes: int = 0
    sent_frames: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    received_frames: int = 0

    def note_received(self, byte_count: int, frame_count: int) -> None:
        """Count a message that was read."""
        self.received_messages += 1
        self.received_bytes += byte_count
        self.received_frames += frame_count
