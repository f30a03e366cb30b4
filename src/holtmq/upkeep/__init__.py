"""What a node does by itself while it serves clients: alarms, checkpoints, retention, scrubbing."""
