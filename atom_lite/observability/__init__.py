"""What operators see: log lines, the periodic status line and Prometheus metrics."""
