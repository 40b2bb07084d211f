"""What is asked for: targets, builds, template arguments and calls. Data that checks itself."""
