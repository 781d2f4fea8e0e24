"""What stands around a page: engine settings, notices, progress of loading, page rail, docks."""
