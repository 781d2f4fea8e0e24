"""Steps recorded, measured and explained."""
