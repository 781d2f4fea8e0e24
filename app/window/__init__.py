"""What every feature may use of the window: commands, docks, notices, settings, layouts."""
