"""What launching needs underneath: processes, connections, payloads and failures. Start at `zerocourse.launch`."""
