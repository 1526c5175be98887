"""What launching needs underneath: marks, channels, failures and payloads. Start at `zerocourse.launch`."""
